//! Extended RaBitQ codes: the grid point that fits a rotated vector best, its factors, and the packing of codes into
//! bytes. Symbols are those of docs/rabitq.md.
const std = @import("std");
const base = @import("base");
const builtin = @import("builtin");
const dispatch = @import("dispatch.zig");
const abi = @import("kernels/abi.zig");
const assert = std.debug.assert;

/// The shape of an index's codes: B = memory_bits + record_bits bits a dimension, the upper ones in memory.
pub const CodeParams = struct {
    /// dim_code, a multiple of 16.
    dim: u32,
    memory_bits: u8,
    record_bits: u8,

    /// Two factors of 16 bits and the center of every vector.
    pub const factor_bytes = 5;

    pub fn check(self: CodeParams) void {
        assert(self.dim > 0 and self.dim % base.limits.dim_code_multiple == 0 and self.dim <= base.limits.dim_code_max);
        assert(self.memory_bits >= 1 and self.memory_bits <= base.limits.memory_bits_max);
        assert(self.record_bits <= base.limits.record_bits_max);
    }

    pub fn total_bits(self: CodeParams) u8 {
        return self.memory_bits + self.record_bits;
    }

    pub fn upper_bytes(self: CodeParams) usize {
        return packed_bytes(self.dim, self.memory_bits);
    }

    pub fn lower_bytes(self: CodeParams) usize {
        return packed_bytes(self.dim, self.record_bits);
    }

    /// One vector's bytes in memory: its code and its factors.
    pub fn entry_bytes(self: CodeParams) usize {
        return self.upper_bytes() + factor_bytes;
    }

    /// x̄ = u − center, for the whole code.
    pub fn center_full(self: CodeParams) f32 {
        return center(self.total_bits());
    }

    pub fn center_upper(self: CodeParams) f32 {
        return center(self.memory_bits);
    }

    fn center(bits: u8) f32 {
        return 0.5 * @as(f32, @floatFromInt((@as(u32, 1) << @intCast(bits)) - 1));
    }
};

pub fn packed_bytes(dim: u32, bits: u8) usize {
    assert(dim % 8 == 0);
    return @as(usize, dim) / 8 * bits;
}

/// Data of one vector beside its code, for estimates. `o` is the coded vector: for codes of an index a vector
/// less its center.
pub const Factors = struct {
    /// |o|²
    norm2: f32,
    /// F = |o|²/⟨x̄,o⟩ of the whole code and of its upper bits alone.
    f_full: f32,
    f_upper: f32,
    /// tan² of the angle between x̄ and o: the size of the error.
    tan2_full: f32,
    tan2_upper: f32,

    pub const zero: Factors = .{ .norm2 = 0, .f_full = 0, .f_upper = 0, .tan2_full = 0, .tan2_upper = 0 };
};

/// The factors of one vector as an index keeps them.
pub const StoredFactors = struct {
    /// `Codes.pair_of`
    memory: u32,
    record: RecordFactors,
};

pub const Encoder = struct {
    params: CodeParams,
    kernels: *const dispatch.Kernels,
    /// |o_i|, then x̄_i
    magnitudes: []f32,
    /// Candidates for the scale, as multiples of the one that just clips nothing.
    ratios: [ratios_max]f32,
    ratio_count: usize,

    const ratios_max = 28;

    /// The weight of the whole code's tan² against that of the upper bits. The scale that is best for the whole code
    /// clips too little for its upper bits, and the other way round; at this weight the whole code gives up next to
    /// nothing and the upper bits gain most of what they can (measured on SIFT, from 2 + 6 to 6 + 2 bits).
    const full_weight = 50;

    pub fn init(alloc: std.mem.Allocator, params: CodeParams) std.mem.Allocator.Error!Encoder {
        params.check();
        var self = Encoder{
            .params = params,
            .kernels = dispatch.kernels(),
            .magnitudes = try alloc.alloc(f32, params.dim),
            .ratios = undefined,
            .ratio_count = ratios_max,
        };
        // The fewer the bits, the more clipping pays: where the best scales of Gaussian data lie, from 16 dimensions
        // (their largest coordinate is 1.8 σ) to thousands (4 σ).
        var range: [2]f32 = switch (params.total_bits()) {
            1 => .{ 1, 1 }, // only signs: every scale gives the same code
            2 => .{ 0.75, 2.6 },
            3 => .{ 0.8, 2.0 },
            4 => .{ 0.8, 1.7 },
            5 => .{ 0.85, 1.45 },
            6 => .{ 0.88, 1.3 },
            7 => .{ 0.9, 1.2 },
            else => .{ 0.93, 1.12 },
        };
        // The upper bits of a split code pull towards their own best scale.
        if (params.record_bits > 0) range[1] = @max(range[1], @as(f32, switch (params.memory_bits) {
            1, 2 => 1.6,
            3 => 1.42,
            4 => 1.26,
            else => 1,
        }));
        if (params.total_bits() == 1) self.ratio_count = 1;
        const last: f32 = @floatFromInt(@max(2, self.ratio_count) - 1);
        for (self.ratios[0..self.ratio_count], 0..) |*ratio, i| {
            ratio.* = range[0] * std.math.pow(f32, range[1] / range[0], @as(f32, @floatFromInt(i)) / last);
        }
        return self;
    }

    pub fn deinit(self: *Encoder, alloc: std.mem.Allocator) void {
        alloc.free(self.magnitudes);
        self.* = undefined;
    }

    /// Writes u for every dimension of the rotated, centered vector `o`, and returns its factors.
    pub fn encode(self: *Encoder, o: []const f32, code: []u16) Factors {
        assert(o.len == self.params.dim);
        assert(code.len == self.params.dim);
        const dim = self.params.dim;
        const half = @as(u32, 1) << @intCast(self.params.total_bits() - 1);
        const largest = self.kernels.max_magnitude(o.ptr, dim);
        // Below this a square is no normal number any more; such a vector is the mean itself.
        if (!(largest > magnitude_min)) {
            @memset(code, @intCast(half));
            return .zero;
        }
        const unclipped = @as(f32, @floatFromInt(half)) / largest;
        const t = self.best_scale(o, unclipped);
        var sums: abi.CodeSums = undefined;
        self.kernels.code_finish(o.ptr, dim, t, @floatFromInt(half - 1), self.upper_scale(), code.ptr, &sums);
        return .{
            .norm2 = @floatCast(sums.norm2),
            // Every point has the sign of its coordinate, so the inner products are positive.
            .f_full = @floatCast(sums.norm2 / sums.dot_full),
            .f_upper = @floatCast(sums.norm2 / sums.dot_upper),
            .tan2_full = tan2(sums.norm2, sums.dot_full, sums.sum2_full),
            .tan2_upper = tan2(sums.norm2, sums.dot_upper, sums.sum2_upper),
        };
    }

    /// Of a code and its factors, as `encode` made them of a vector less `center`. F is rounded first; A is what makes the
    /// estimate exact for the vector itself with the rounded F, so only what a query differs from the vector by meets the
    /// rounding of F.
    pub fn store_factors(self: *Encoder, form: Form, code: []const u16, factors: Factors, center: []const f32, center_norm2: f32) StoredFactors {
        const record_bits = self.params.record_bits;
        const own = center_norm2 - factors.norm2;
        const along_upper = along(factors.norm2, factors.f_upper, self.toward(code, @intCast(record_bits), self.params.center_upper(), center));
        var f_code = PositiveFloat.encode(factors.f_upper);
        var offset_code: u16 = 0;
        if (form == .distance and f_code > 0) {
            var least = std.math.inf(f32);
            const nearest_code = f_code;
            for (nearest_code -| rounding_reach..@as(usize, nearest_code) + rounding_reach + 1) |candidate| {
                const f = PositiveFloat.decode(@intCast(candidate));
                const offset = 2 * f * along_upper + own;
                const rounded = PositiveFloat.encode(offset);
                // At the vector the two err by this; at a query as far away as the center F errs along o, by about a third.
                const at_vector = PositiveFloat.decode(rounded) - offset;
                const elsewhere = 2 * (f / factors.f_upper - 1) * factors.norm2;
                const cost = at_vector * at_vector + elsewhere * elsewhere / 8;
                if (cost < least) {
                    least = cost;
                    f_code = @intCast(candidate);
                    offset_code = rounded;
                }
            }
        } else if (form == .distance) offset_code = PositiveFloat.encode(center_norm2);
        const f_upper = PositiveFloat.decode(f_code);
        const ratio = RecordFactors.ratio_of(factors.f_full, f_upper, record_bits);
        const f_full = RecordFactors.f_full(ratio, f_upper, record_bits);
        const along_full = along(factors.norm2, factors.f_full, self.toward(code, 0, self.params.center_full(), center));
        return .{
            .memory = Codes.pair_of(offset_code, f_code),
            .record = .{ .offset = if (form == .distance) 2 * f_full * along_full + own else 0, .ratio = ratio },
        };
    }

    /// Codes of F that are tried on both sides of the nearest one.
    const rounding_reach = 3;

    /// ⟨x̄,v⟩ of the vector v = o + c.
    fn along(norm2: f32, f: f32, toward_center: f32) f32 {
        return if (f > 0) norm2 / f + toward_center else toward_center;
    }

    /// ⟨x̄,c⟩
    fn toward(self: *Encoder, code: []const u16, shift: u4, middle: f32, center: []const f32) f32 {
        for (self.magnitudes, code) |*x, u| x.* = @as(f32, @floatFromInt(u >> shift)) - middle;
        return self.kernels.dot(self.magnitudes.ptr, center.ptr, self.params.dim);
    }

    pub const magnitude_min: f32 = 1e-18;

    fn upper_scale(self: *const Encoder) f32 {
        return std.math.ldexp(@as(f32, 1), -@as(i32, self.params.record_bits));
    }

    fn tan2(norm2: f64, inner: f64, sum2: f64) f32 {
        return @floatCast(@max(0, norm2 * sum2 / (inner * inner) - 1));
    }

    /// The scale t of the grid (levels a unit) that fits best. Any t gives a valid code: only its error depends on it.
    fn best_scale(self: *Encoder, o: []const f32, unclipped: f32) f32 {
        if (self.ratio_count == 1) return unclipped;
        for (o, self.magnitudes) |x, *magnitude| magnitude.* = @abs(x);
        const level_max: f32 = @floatFromInt((@as(u32, 1) << @intCast(self.params.total_bits() - 1)) - 1);
        var best = unclipped;
        var best_cost = std.math.inf(f32);
        for (self.ratios[0..self.ratio_count]) |ratio| {
            const t = unclipped * ratio;
            var scores: abi.CodeScores = undefined;
            self.kernels.code_scores(self.magnitudes.ptr, self.params.dim, t, level_max, self.upper_scale(), &scores);
            // Both terms are 1/cos² = 1 + tan², up to the factor 1/|o|² which all candidates share.
            const full = scores.sum2_full / (scores.dot_full * scores.dot_full);
            const upper = scores.sum2_upper / (scores.dot_upper * scores.dot_upper);
            const cost = if (self.params.record_bits == 0) full else full_weight * full + upper;
            if (cost < best_cost) {
                best_cost = cost;
                best = t;
            }
        }
        return best;
    }
};

/// Packs (code >> shift) & (2^bits − 1): dimension i occupies bits [i·bits, (i+1)·bits), little-endian.
pub fn pack(code: []const u16, shift: u4, bits: u8, out: []u8) void {
    assert(bits <= 8);
    assert(code.len % 8 == 0);
    if (bits == 0) return;
    const mask = (@as(u64, 1) << @intCast(bits)) - 1;
    for (0..code.len / 8) |group| {
        var word: u64 = 0;
        inline for (0..8) |i| word |= ((code[group * 8 + i] >> shift) & mask) << @intCast(i * bits);
        var bytes: [8]u8 = undefined;
        std.mem.writeInt(u64, &bytes, word, .little);
        @memcpy(out[group * bits ..][0..bits], bytes[0..bits]);
    }
}

/// The inverse: code_i = packed value of dimension i.
pub fn unpack(bytes: []const u8, bits: u8, code: []u16) void {
    assert(bits <= 8);
    assert(code.len % 8 == 0);
    if (bits == 0) return @memset(code, 0);
    const mask = (@as(u64, 1) << @intCast(bits)) - 1;
    for (0..code.len / 8) |group| {
        var word_bytes: [8]u8 = @splat(0);
        @memcpy(word_bytes[0..bits], bytes[group * bits ..][0..bits]);
        const word = std.mem.readInt(u64, &word_bytes, .little);
        inline for (0..8) |i| code[group * 8 + i] = @intCast((word >> @intCast(i * bits)) & mask);
    }
}

// ---- stored codes ----
//
// The codes that an open index keeps in memory.

/// The measure that codes are compared by. In both forms less is nearer.
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

    fn ratio_of(f_whole: f32, f_upper: f32, record_bits: u8) u16 {
        if (!(f_upper > 0)) return 0;
        const share = std.math.ldexp(f_whole / f_upper, record_bits) / ratio_max;
        return @intFromFloat(std.math.clamp(@round(share * std.math.maxInt(u16)), 0, std.math.maxInt(u16)));
    }

    pub inline fn f_full(ratio: u16, f_upper: f32, record_bits: u8) f32 {
        return f_upper * (@as(f32, @floatFromInt(ratio)) * step(record_bits));
    }

    /// The growth of F with the ratio, as a share of that of the upper code.
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
    /// The centers that vertices are coded around.
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

    fn pair_of(offset: u16, f: u16) u32 {
        return offset | @as(u32, f) << 16;
    }

    /// Codes and factors in memory of `count` consecutive vertices.
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

// ---- decoding ----
//
// A code is the point of the grid, scaled by F, at its center (docs/rabitq.md, "What a code keeps").

/// `out` = F·x̄ + c from both halves of a packed code, in the codes' space. `code` is scratch; all three are `params.dim` long.
pub fn decode(params: CodeParams, upper: []const u8, lower: []const u8, f_full: f32, center: []const f32, code: []u16, out: []f32) void {
    assert(center.len == params.dim and code.len == params.dim and out.len == params.dim);
    const middle = params.center_full();
    unpack(upper, params.memory_bits, code);
    const grid: f32 = @floatFromInt(@as(u32, 1) << @intCast(params.record_bits));
    for (out, code) |*value, u| value.* = @as(f32, @floatFromInt(u)) * grid - middle;
    unpack(lower, params.record_bits, code);
    for (out, code, center) |*value, u, c| value.* = f_full * (value.* + @as(f32, @floatFromInt(u))) + c;
}

test "pack and unpack are inverse, touch only their bytes, and split a code without loss" {
    var prng = base.Prng.init(9);
    for ([_]u32{ 16, 48, 128, 400 }) |dim| for (0..9) |bits_usize| for ([_]u4{ 0, 3, 8 }) |shift| {
        const bits: u8 = @intCast(bits_usize);
        var code: [400]u16 = undefined;
        var again: [400]u16 = undefined;
        for (code[0..dim]) |*u| u.* = @truncate(prng.next());
        var bytes: [401]u8 = @splat(0xee);
        pack(code[0..dim], shift, bits, &bytes);
        const used = packed_bytes(dim, bits);
        try std.testing.expectEqual(0xee, bytes[used]);
        unpack(bytes[0..used], bits, again[0..dim]);
        const mask = (@as(u32, 1) << @intCast(bits)) - 1;
        for (code[0..dim], again[0..dim], 0..) |u, v, i| {
            try std.testing.expectEqual((u >> shift) & mask, v);
            if (bits > 0) try std.testing.expectEqual(v, @import("kernels/scalar.zig").code_at(&bytes, i, bits));
        }
    };
}

test "a code keeps the sign of every coordinate and stays inside its bits" {
    const alloc = std.testing.allocator;
    var prng = base.Prng.init(10);
    for (1..9) |memory_bits| for ([_]u8{ 0, 1, 4, 8 }) |record_bits| {
        const params = CodeParams{ .dim = 64, .memory_bits = @intCast(memory_bits), .record_bits = record_bits };
        var encoder = try Encoder.init(alloc, params);
        defer encoder.deinit(alloc);
        var o: [64]f32 = undefined;
        var code: [64]u16 = undefined;
        for (0..20) |_| {
            for (&o) |*x| x.* = prng.gaussian() * 17;
            const factors = encoder.encode(&o, &code);
            for (o, code) |x, u| {
                try std.testing.expect(@as(u32, u) < @as(u32, 1) << @intCast(params.total_bits()));
                try std.testing.expectEqual(x > 0, @as(f32, @floatFromInt(u)) > params.center_full());
            }
            try std.testing.expect(factors.f_full > 0 and factors.f_upper > 0);
            try std.testing.expect(factors.tan2_full >= 0 and factors.tan2_full <= factors.tan2_upper + 1e-6);
        }
    };
}

test "zero, constant, one-hot, tiny and huge vectors have finite factors" {
    const alloc = std.testing.allocator;
    for ([_][2]u8{ .{ 1, 0 }, .{ 4, 4 }, .{ 8, 8 }, .{ 2, 6 } }) |bits| {
        var encoder = try Encoder.init(alloc, .{ .dim = 32, .memory_bits = bits[0], .record_bits = bits[1] });
        defer encoder.deinit(alloc);
        var code: [32]u16 = undefined;
        var o: [32]f32 = @splat(0);
        try std.testing.expectEqual(Factors.zero, encoder.encode(&o, &code));
        for ([_]f32{ 1e-30, 1e-12, 1, -3, 1e12 }) |value| for ([_]bool{ false, true }) |one_hot| {
            @memset(&o, if (one_hot) 0 else value);
            o[5] = value;
            const factors = encoder.encode(&o, &code);
            inline for (std.meta.fields(Factors)) |field| {
                try std.testing.expect(std.math.isFinite(@field(factors, field.name)));
            }
        };
    }
}

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
