//! Limits of the format and of the library: every room takes them from here, so that a file or an argument beyond
//! them is refused in one place with one number.
const std = @import("std");

pub const page_size_min = 4096;
pub const page_size_max = 65536;
/// O_DIRECT offsets, lengths and buffers are multiples of this.
pub const sector_size = 4096;

/// Dimensions of a vector as the user gives it, and of the rotated space (rounded up to `dim_code_multiple`).
pub const dim_max = 8192;
/// Packed codes of this many dimensions are whole bytes at every width, and fill the narrowest registers.
pub const dim_code_multiple = 16;
/// The inner product appends one coordinate before rounding up.
pub const dim_code_max = dim_max + dim_code_multiple;

/// Bits a dimension of the two halves of a code; in memory at least one.
pub const memory_bits_max = 8;
pub const record_bits_max = 8;

/// Centers that vectors are coded around: a byte names one.
pub const centers_max = 256;

/// Vertex ids are u32 below 2^31, so that a signed difference of two fits; the largest u32 means "none".
pub const vertices_max = 1 << 31;

/// Kernels may read this many bytes past the end of the last code: whoever stores codes pads by as much.
pub const code_padding = 64;

comptime {
    std.debug.assert(page_size_min % sector_size == 0);
    std.debug.assert(dim_max % dim_code_multiple == 0);
    // A dot product of unsigned 8-bit codes with a signed 8-bit query stays inside i32.
    std.debug.assert(dim_code_max * 255 * 128 < std.math.maxInt(i32));
}
