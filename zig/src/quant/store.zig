//! The codes that an open index keeps in memory.
const std = @import("std");
const builtin = @import("builtin");
const assert = std.debug.assert;
const base = @import("base");
const CodeParams = @import("encode.zig").CodeParams;

/// What codes are compared by. In both forms less is nearer.
pub const Form = enum {
    /// Squared L2 distance.
    distance,
    /// −2·⟨q,x⟩.
    product,
};

/// A float that is not negative in 16 bits: 8 of exponent, 8 of mantissa. Its relative error is at most 2⁻⁹ whatever its
/// size, so one vector's factors do not depend on another's.
pub const PositiveFloat = struct {
    pub const largest: u16 = 0xfeff;

    /// The nearest that has a code; what is negative becomes 0.
    pub fn encode(value: f32) u16 {
        if (!(value > 0)) return 0;
        const bits: u32 = @bitCast(value);
        return @intCast(@min(largest, (bits +| (1 << 14)) >> 15));
    }

    pub inline fn decode(code: u16) f32 {
        return @bitCast(@as(u32, code) << 15);
    }
};

/// The factors of a whole code, as its record has them: A, and F as a share of that of the upper code.
pub const RecordFactors = struct {
    offset: f32,
    ratio: u16,

    /// The upper code is the whole one rounded to a coarser grid, so F·2^record_bits ÷ F_upper lies between 0 and 2.
    const ratio_max: f32 = 2;

    pub fn ratio_of(f_whole: f32, f_upper: f32, record_bits: u8) u16 {
        if (!(f_upper > 0)) return 0;
        const share = std.math.ldexp(f_whole / f_upper, record_bits) / ratio_max;
        return @intFromFloat(std.math.clamp(@round(share * std.math.maxInt(u16)), 0, std.math.maxInt(u16)));
    }

    pub inline fn f_full(ratio: u16, f_upper: f32, record_bits: u8) f32 {
        return f_upper * (@as(f32, @floatFromInt(ratio)) * step(record_bits));
    }

    /// What F grows by with the ratio, as a share of that of the upper code.
    pub fn step(record_bits: u8) f32 {
        const grid: f32 = @bitCast((127 - @as(u32, record_bits)) << 23); // 2^−record_bits
        return ratio_max / std.math.maxInt(u16) * grid;
    }
};

/// Of some vectors the packed upper codes one after the other, their factors (`Codes.factors`) and the numbers of their centers.
pub const Uppers = struct {
    codes: [*]const u8,
    factors: [*]const u32,
    center_ids: [*]const u8,
};

/// Three arrays: packed upper codes of `params.upper_bytes()` with at least `base.limits.code_padding` bytes behind the
/// last one, factors, and the numbers of centers. They lie apart because a code of 4 bits × 128 dimensions is just a
/// cache line then, and the factors of 16 neighbors share another.
pub const Codes = struct {
    params: CodeParams,
    n: u32,
    bytes: []align(64) const u8,
    /// A vertex's offset A and, above it, F of its upper code: a `PositiveFloat` each.
    factors: []const u32,
    /// What every vertex is coded around.
    center_ids: []const u8,
    /// At most `base.limits.centers_max` of `params.dim` each.
    centers: []const f32,
    form: Form,
    /// |o|²/F_upper², nearly the same for all vertices: how long `o` is, the vector less its center.
    norm2_per_f2: f32,
    /// Root mean squares of tan(angle between x̄ and o) over the index.
    tan_upper: f32,
    tan_full: f32,

    /// Bytes of the array of codes with its padding.
    pub fn byte_len(params: CodeParams, n: u32) usize {
        return params.upper_bytes() * n + base.limits.code_padding;
    }

    pub fn pair_of(offset: u16, f: u16) u32 {
        return offset | @as(u32, f) << 16;
    }

    /// What memory knows of `count` vertices that follow each other.
    pub fn uppers(self: *const Codes, first: u32, count: u32) Uppers {
        assert(first + count <= self.n);
        return .{ .codes = self.code(first), .factors = self.factors.ptr + first, .center_ids = self.center_ids.ptr + first };
    }

    /// The packed upper code of a vertex.
    pub fn code(self: *const Codes, id: u32) [*]const u8 {
        assert(id < self.n);
        return self.bytes.ptr + self.params.upper_bytes() * id;
    }

    pub fn offset_of(self: *const Codes, id: u32) f32 {
        return PositiveFloat.decode(@truncate(self.factors[id]));
    }

    /// |o|², about.
    pub fn norm2_of(self: *const Codes, id: u32) f32 {
        const f = self.f_upper_of(id);
        return f * f * self.norm2_per_f2;
    }

    pub fn f_upper_of(self: *const Codes, id: u32) f32 {
        assert(id < self.n);
        @setRuntimeSafety(builtin.mode == .Debug); // measured (decisions/0007)
        return PositiveFloat.decode(@intCast(self.factors[id] >> 16));
    }

    /// Starts the loads of vertices that will be estimated soon.
    pub inline fn prefetch(self: *const Codes, ids: []const u32) void {
        const len = self.params.upper_bytes();
        // Copies: after a prefetch the compiler would load them anew.
        const n, const bytes, const factors, const center_ids = .{ self.n, self.bytes.ptr, self.factors.ptr, self.center_ids.ptr };
        for (ids) |id| {
            assert(id < n);
            @setRuntimeSafety(builtin.mode == .Debug); // measured (decisions/0007)
            const start = bytes + len * id;
            @prefetch(factors + id, .{ .locality = 3 });
            @prefetch(center_ids + id, .{ .locality = 3 });
            var offset: usize = 0;
            while (offset + 64 < len) : (offset += 64) @prefetch(start + offset, .{ .locality = 3 });
            @prefetch(start + len - 1, .{ .locality = 3 });
        }
    }
};

test "a positive float keeps its size within 2^-9, its order, zero, and survives what is too large" {
    const seed = std.testing.random_seed;
    errdefer std.debug.print("seed={d}\n", .{seed});
    var prng = base.Prng.init(seed);
    for (0..4000) |i| {
        const value = std.math.ldexp(1 + prng.float(), @as(i32, @intCast(i / 16)) - 124);
        const back = PositiveFloat.decode(PositiveFloat.encode(value));
        try std.testing.expectApproxEqRel(value, back, 1.0 / 512.0);
        try std.testing.expect(PositiveFloat.encode(1.01 * value) > PositiveFloat.encode(value));
    }
    try std.testing.expectEqual(0, PositiveFloat.decode(PositiveFloat.encode(0)));
    try std.testing.expectEqual(0, PositiveFloat.encode(-3));
    try std.testing.expect(std.math.isFinite(PositiveFloat.decode(PositiveFloat.encode(std.math.floatMax(f32)))));
}

test "a record's F comes back from its ratio" {
    for ([_]f32{ 1e-12, 0.3, 7, 1e12 }) |f_upper| for ([_]f32{ 0.5, 0.9, 1, 1.3 }) |share| for ([_]u8{ 0, 4, 8 }) |record_bits| {
        const f = std.math.ldexp(f_upper * share, -@as(i32, record_bits));
        const ratio = RecordFactors.ratio_of(f, f_upper, record_bits);
        try std.testing.expectApproxEqRel(f, RecordFactors.f_full(ratio, f_upper, record_bits), 4e-5);
    };
    try std.testing.expectEqual(0, RecordFactors.ratio_of(0, 0, 6));
}
