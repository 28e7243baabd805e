//! The quant room.
