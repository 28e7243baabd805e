//! A seeded orthonormal map: it spreads every vector's energy evenly over the dimensions, which is what lets a code of
//! a few bits a dimension have an error that depends on no particular data. Docs: docs/rabitq.md.
const std = @import("std");
const assert = std.debug.assert;
const base = @import("base");
const dispatch = @import("dispatch.zig");

const rounds = 4;
/// By then each dimension has been transformed once, and will be once more.
const butterfly_after = 1;

/// Dimensions of the rotated space.
pub fn dim_code_of(dim_work: u32) u32 {
    assert(dim_work > 0);
    return std.mem.alignForward(u32, dim_work, base.limits.dim_code_multiple);
}

/// Four rounds of: random signs; a fast Hadamard transform of the first (then of the last, alternately) p dimensions,
/// p the largest power of two that fits. If p < dim_code, a butterfly between the two halves of the vector follows
/// the second round, because first and last block may overlap in few dimensions only. Each step is orthonormal.
pub const Rotation = struct {
    dim_in: u32,
    dim_code: u32,
    block: u32,
    /// Signs and all constant factors of each round, `rounds` times `dim_code`.
    factors: []f32,

    pub fn init(alloc: std.mem.Allocator, dim_in: u32, seed: u64) std.mem.Allocator.Error!Rotation {
        const dim = dim_code_of(dim_in);
        const block = std.math.floorPowerOfTwo(u32, dim);
        const factors = try alloc.alloc(f32, rounds * @as(usize, dim));
        var prng = base.Prng.init(seed);
        const block_scale = 1 / @sqrt(@as(f64, @floatFromInt(block)));
        for (0..rounds) |round| {
            const start = block_start(dim, block, round);
            // The butterfly has lengthened every vector by √2.
            const before: f64 = if (round == butterfly_after + 1 and block < dim) @sqrt(0.5) else 1;
            for (factors[round * dim ..][0..dim], 0..) |*factor, i| {
                const transformed = i >= start and i < start + block;
                const sign: f64 = if (prng.boolean()) 1 else -1;
                factor.* = @floatCast(sign * before * @as(f64, if (transformed) block_scale else 1));
            }
        }
        return .{ .dim_in = dim_in, .dim_code = dim, .block = block, .factors = factors };
    }

    pub fn deinit(self: *Rotation, alloc: std.mem.Allocator) void {
        alloc.free(self.factors);
        self.* = undefined;
    }

    /// out = R·in, `in` padded with zeros. `in` and `out` do not overlap.
    pub fn apply(self: *const Rotation, in: []const f32, out: []f32) void {
        assert(in.len == self.dim_in);
        assert(out.len == self.dim_code);
        const k = dispatch.kernels();
        const dim = self.dim_code;
        @memcpy(out[0..in.len], in);
        @memset(out[in.len..], 0);
        for (0..rounds) |round| {
            k.multiply(out.ptr, self.factors[round * dim ..].ptr, dim);
            k.hadamard(out.ptr + block_start(dim, self.block, round), self.block);
            if (round == butterfly_after and self.block < dim) butterfly(out[0 .. dim / 2], out[dim / 2 ..]);
        }
    }

    /// out = Rᵀ·in: what `apply` made `in` of, where `in` is such; else the nearest there is. `in` is overwritten. Each step is
    /// its own transpose but for scale, and together the scales are those of an orthonormal map: so the steps run backwards.
    pub fn undo(self: *const Rotation, in: []f32, out: []f32) void {
        assert(in.len == self.dim_code);
        assert(out.len == self.dim_in);
        const k = dispatch.kernels();
        const dim = self.dim_code;
        for (0..rounds) |done| {
            const round = rounds - 1 - done;
            if (round == butterfly_after and self.block < dim) butterfly(in[0 .. dim / 2], in[dim / 2 ..]);
            k.hadamard(in.ptr + block_start(dim, self.block, round), self.block);
            k.multiply(in.ptr, self.factors[round * dim ..].ptr, dim);
        }
        @memcpy(out, in[0..out.len]);
    }

    fn block_start(dim: u32, block: u32, round: usize) u32 {
        return if (round % 2 == 0) 0 else dim - block;
    }

    fn butterfly(first: []f32, second: []f32) void {
        for (first, second) |*a, *b| {
            const sum = a.* + b.*;
            b.* = a.* - b.*;
            a.* = sum;
        }
    }
};

test "dim_code_of rounds up to sixteen" {
    for ([_][2]u32{ .{ 1, 16 }, .{ 16, 16 }, .{ 17, 32 }, .{ 128, 128 }, .{ 129, 144 }, .{ 8192, 8192 } }) |pair| {
        try std.testing.expectEqual(pair[1], dim_code_of(pair[0]));
    }
}

test "the rotation is orthonormal: R·Rᵀ = I over the basis, and no entry stands out" {
    const alloc = std.testing.allocator;
    for ([_]u32{ 16, 32, 48, 80, 112, 128, 240, 496 }) |dim| {
        var rotation = try Rotation.init(alloc, dim, 42 + dim);
        defer rotation.deinit(alloc);
        const columns = try alloc.alloc(f32, dim * dim);
        defer alloc.free(columns);
        const unit = try alloc.alloc(f32, dim);
        defer alloc.free(unit);
        var largest: f32 = 0;
        for (0..dim) |i| {
            @memset(unit, 0);
            unit[i] = 1;
            rotation.apply(unit, columns[i * dim ..][0..dim]);
            for (columns[i * dim ..][0..dim]) |x| largest = @max(largest, @abs(x));
        }
        for (0..dim) |i| for (0..i + 1) |j| {
            var sum: f64 = 0;
            for (columns[i * dim ..][0..dim], columns[j * dim ..][0..dim]) |a, b| sum += @as(f64, a) * b;
            try std.testing.expectApproxEqAbs(@as(f64, if (i == j) 1 else 0), sum, 1e-5);
        };
        // Entries of a uniformly random rotation are about N(0, 1/dim): of dim² of them none is likely past 6 σ.
        try std.testing.expect(largest * @sqrt(@as(f32, @floatFromInt(dim))) < 6);
    }
}

test "norms and inner products survive, with padding and at the largest dimension" {
    const alloc = std.testing.allocator;
    var prng = base.Prng.init(3);
    for ([_]u32{ 1, 2, 15, 17, 100, 128, 200, 384, 769, 1000, 1536, 3072, 8192, 8193 }) |dim| {
        errdefer std.debug.print("dim {}\n", .{dim});
        var rotation = try Rotation.init(alloc, dim, dim);
        defer rotation.deinit(alloc);
        const a = try alloc.alloc(f32, dim);
        defer alloc.free(a);
        const b = try alloc.alloc(f32, dim);
        defer alloc.free(b);
        const ra = try alloc.alloc(f32, rotation.dim_code);
        defer alloc.free(ra);
        const rb = try alloc.alloc(f32, rotation.dim_code);
        defer alloc.free(rb);
        for (a, b) |*x, *y| {
            x.* = prng.gaussian() * 3;
            y.* = prng.gaussian() + 0.5;
        }
        rotation.apply(a, ra);
        rotation.apply(b, rb);
        const norm_a = @sqrt(inner(a, a));
        const norm_b = @sqrt(inner(b, b));
        try std.testing.expectApproxEqRel(norm_a, @sqrt(inner(ra, ra)), 1e-5);
        try std.testing.expectApproxEqAbs(inner(a, b), inner(ra, rb), 1e-5 * norm_a * norm_b);
    }
}

test "undone, a rotation gives back what it was given, and of anything else its projection" {
    const alloc = std.testing.allocator;
    const seed = std.testing.random_seed;
    errdefer std.debug.print("seed={d}\n", .{seed});
    var prng = base.Prng.init(seed);
    for ([_]u32{ 1, 2, 15, 16, 17, 48, 100, 112, 128, 200, 384, 769, 1536, 8192, 8193 }) |dim| {
        errdefer std.debug.print("dim {}\n", .{dim});
        var rotation = try Rotation.init(alloc, dim, prng.next());
        defer rotation.deinit(alloc);
        const buffer = try alloc.alloc(f32, 3 * @as(usize, rotation.dim_code));
        defer alloc.free(buffer);
        const given = buffer[0..dim];
        const again = buffer[rotation.dim_code..][0..dim];
        const rotated = buffer[2 * rotation.dim_code ..];
        for (given) |*x| x.* = prng.gaussian() * 3 + 1;
        rotation.apply(given, rotated);
        rotation.undo(rotated, again);
        const norm = @sqrt(inner(given, given));
        for (given, again) |x, y| try std.testing.expectApproxEqAbs(x, y, @as(f32, @floatCast(1e-5 * norm)));
        // ⟨R·x, y⟩ = ⟨x, Rᵀ·y⟩
        const any = try alloc.alloc(f32, rotation.dim_code);
        defer alloc.free(any);
        for (any) |*y| y.* = prng.gaussian();
        rotation.apply(given, rotated);
        const before = inner(rotated, any);
        const length = @sqrt(inner(any, any));
        rotation.undo(any, again);
        try std.testing.expectApproxEqAbs(before, inner(given, again), 1e-5 * norm * length);
        try std.testing.expect(@sqrt(inner(again, again)) <= length * (1 + 1e-5));
    }
}

test "the same seed gives the same map, another seed another" {
    const alloc = std.testing.allocator;
    var outs: [3][112]f32 = undefined;
    var in: [100]f32 = undefined;
    for (&in, 0..) |*x, i| x.* = @floatFromInt(i);
    for ([_]u64{ 1, 1, 2 }, &outs) |seed, *out| {
        var rotation = try Rotation.init(alloc, 100, seed);
        defer rotation.deinit(alloc);
        rotation.apply(&in, out);
    }
    try std.testing.expectEqualSlices(f32, &outs[0], &outs[1]);
    try std.testing.expect(!std.mem.eql(f32, &outs[0], &outs[2]));
}

fn inner(a: []const f32, b: []const f32) f64 {
    var sum: f64 = 0;
    for (a, b) |x, y| sum += @as(f64, x) * y;
    return sum;
}
