//! The codes that an open index keeps in memory.
const std = @import("std");
const assert = std.debug.assert;
const base = @import("base");
const CodeParams = @import("encode.zig").CodeParams;

/// A float as 16 bits between index-wide bounds: value = min + step·u.
pub const Scale16 = struct {
    min: f32,
    step: f32,

    pub fn of(min: f32, max: f32) Scale16 {
        assert(min <= max);
        return .{ .min = min, .step = (max - min) / std.math.maxInt(u16) };
    }

    /// The nearest value that has a code; values outside the bounds take the bound.
    pub fn encode(self: Scale16, value: f32) u16 {
        if (self.step == 0) return 0;
        return @intFromFloat(std.math.clamp(@round((value - self.min) / self.step), 0, std.math.maxInt(u16)));
    }

    pub fn decode(self: Scale16, code: u16) f32 {
        return self.min + self.step * @as(f32, @floatFromInt(code));
    }
};

/// Three arrays: packed upper codes of `params.upper_bytes()` with at least `base.limits.code_padding` bytes behind the
/// last one, factors, and the numbers of centers. They lie apart because a code of 4 bits × 128 dimensions is just a
/// cache line then, and the factors of 16 neighbors share another.
pub const Codes = struct {
    params: CodeParams,
    n: u32,
    bytes: []align(64) const u8,
    /// A vertex's u16 offset and, above it, u16 f_upper: both scaled.
    factors: []const u32,
    /// What every vertex is coded around.
    center_ids: []const u8,
    /// At most `base.limits.centers_max` of `params.dim` each.
    centers: []const f32,
    /// Of offsets in memory and in records.
    offset: Scale16,
    f_upper: Scale16,
    f_full: Scale16,
    /// |o|²/f_upper², nearly the same for all vertices: how long `o` is, the vector less its center.
    norm2_per_f2: f32,
    /// Root mean squares of tan(angle between x̄ and o) over the index.
    tan_upper: f32,
    tan_full: f32,

    /// Bytes of the array of codes with its padding.
    pub fn byte_len(params: CodeParams, n: u32) usize {
        return params.upper_bytes() * n + base.limits.code_padding;
    }

    /// Of the upper code in memory, of the whole code in records.
    pub fn pair_of(offset: u16, f: u16) u32 {
        return offset | @as(u32, f) << 16;
    }

    /// The packed upper code of a vertex.
    pub fn code(self: *const Codes, id: u32) [*]const u8 {
        assert(id < self.n);
        return self.bytes.ptr + self.params.upper_bytes() * id;
    }

    pub fn offset_of(self: *const Codes, id: u32) f32 {
        return self.offset.decode(@truncate(self.factors[id]));
    }

    /// |o|², about.
    pub fn norm2_of(self: *const Codes, id: u32) f32 {
        const f = self.f_upper_of(id);
        return f * f * self.norm2_per_f2;
    }

    pub fn f_upper_of(self: *const Codes, id: u32) f32 {
        return self.f_upper.decode(@intCast(self.factors[id] >> 16));
    }

    /// Starts the loads of a vertex that will be estimated soon.
    pub inline fn prefetch(self: *const Codes, id: u32) void {
        const start = self.code(id);
        const len = self.params.upper_bytes();
        @prefetch(&self.factors[id], .{ .locality = 3 });
        @prefetch(&self.center_ids[id], .{ .locality = 3 });
        var offset: usize = 0;
        while (offset + 64 < len) : (offset += 64) @prefetch(start + offset, .{ .locality = 3 });
        @prefetch(start + len - 1, .{ .locality = 3 });
    }
};

test "Scale16 is off by at most half a step, keeps its bounds, and survives an empty range" {
    for ([_][2]f32{ .{ 0, 1 }, .{ 3, 4000 }, .{ -2, 5 }, .{ 1e-9, 2e-9 }, .{ 0, 3e8 } }) |range| {
        const scale = Scale16.of(range[0], range[1]);
        const width = range[1] - range[0];
        for (0..1001) |i| {
            const value = range[0] + width * @as(f32, @floatFromInt(i)) / 1000;
            const error_max = 0.5 * width / 65535 + 4 * std.math.floatEps(f32) * @max(@abs(range[0]), @abs(range[1]));
            try std.testing.expectApproxEqAbs(value, scale.decode(scale.encode(value)), error_max);
        }
        try std.testing.expectEqual(0, scale.encode(range[0] - width));
        try std.testing.expectEqual(65535, scale.encode(range[1] + width));
    }
    const point = Scale16.of(2.5, 2.5);
    try std.testing.expectEqual(2.5, point.decode(point.encode(2.5)));
}
