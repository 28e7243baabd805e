//! The estimators against true distances.
