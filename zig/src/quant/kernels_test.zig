//! Every compiled kernel against the definition.
