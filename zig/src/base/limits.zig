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

/// From the least to the most that a caller may ask for.
pub const Range = struct {
    min: comptime_int,
    max: comptime_int,

    /// NaN lies in no range.
    pub fn holds(comptime self: Range, value: anytype) bool {
        const number: f64 = switch (@typeInfo(@TypeOf(value))) {
            .int => @floatFromInt(value),
            else => value,
        };
        return number >= self.min and number <= self.max;
    }
};

/// By the names of the arguments in `velo_limit` of velo.h; a test compares the two. Values outside are refused, none is
/// clamped.
pub const ranges = struct {
    pub const dim: Range = .{ .min = 1, .max = dim_max };
    /// The code alone could have `memory_bits_max`; the kernels of a search know these.
    pub const memory_bits: Range = .{ .min = 1, .max = 6 };
    pub const record_bits: Range = .{ .min = 0, .max = record_bits_max };
    pub const degree: Range = .{ .min = 4, .max = 128 };
    pub const build_list_size: Range = .{ .min = 8, .max = 2000 };
    pub const alpha: Range = .{ .min = 1, .max = 4 };
    /// 0: there are none.
    pub const record_code_bytes: Range = .{ .min = 0, .max = 64 };
    /// Of a build; an open index keeps at most what was built.
    pub const links_kept: Range = .{ .min = 0, .max = 128 };
    pub const affinity_percent: Range = .{ .min = 1, .max = 99 };
    pub const checkpoint_ms: Range = .{ .min = 1, .max = 1_000_000_000 };
    pub const threads: Range = .{ .min = 1, .max = 1024 };
    pub const queries_in_flight: Range = .{ .min = 1, .max = 256 };
    pub const queue_depth: Range = .{ .min = 1, .max = 4096 };
    pub const cache_share_percent: Range = .{ .min = 0, .max = 95 };
    pub const k: Range = .{ .min = 1, .max = 4096 };
    pub const list_size: Range = .{ .min = 1, .max = 8192 };
    pub const beam_width: Range = .{ .min = 1, .max = 64 };
    pub const burst_max: Range = .{ .min = 1, .max = 128 };
    pub const sigma: Range = .{ .min = 0, .max = 100 };
    /// That one call searches.
    pub const segments: Range = .{ .min = 1, .max = 64 };
};

/// Kernels may read this many bytes past the end of the last code: code buffers are padded by as much.
pub const code_padding = 64;

comptime {
    std.debug.assert(page_size_min % sector_size == 0);
    std.debug.assert(dim_max % dim_code_multiple == 0);
    // A dot product of unsigned 8-bit codes with a signed 8-bit query stays inside i32.
    std.debug.assert(dim_code_max * 255 * 128 < std.math.maxInt(i32));
}

test "a range holds its ends and nothing beyond, and no NaN" {
    for ([_]u32{ 4, 5, 128 }) |degree| try std.testing.expect(ranges.degree.holds(degree));
    for ([_]u32{ 0, 3, 129, std.math.maxInt(u32) }) |degree| try std.testing.expect(!ranges.degree.holds(degree));
    for ([_]f32{ 1, 1.2, 4 }) |alpha| try std.testing.expect(ranges.alpha.holds(alpha));
    for ([_]f32{ 0.99, 4.01, std.math.nan(f32), std.math.inf(f32) }) |alpha| try std.testing.expect(!ranges.alpha.holds(alpha));
}
