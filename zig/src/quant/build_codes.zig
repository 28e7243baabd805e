//! Codes for construction: 8 bits a dimension, all in memory, compared with one another.
const std = @import("std");
const builtin = @import("builtin");
const assert = std.debug.assert;
const base = @import("base");
const dispatch = @import("dispatch.zig");
const abi = @import("kernels/abi.zig");
const encode = @import("encode.zig");

pub const BuildCodes = struct {
    n: u32,
    /// dim_code
    dim: u32,
    memory: base.AlignedBytes,
    /// u of every vector, a byte a dimension, `dim` bytes a vector, padded behind the last.
    codes: []align(64) u8,
    factor_memory: base.AlignedBytes,
    factors: []PairFactors,

    pub const PairFactors = abi.PairFactors;
    pub const bits = 8;

    pub fn init(n: u32, dim: u32) error{OutOfMemory}!BuildCodes {
        params_of(dim).check();
        var memory = try base.AlignedBytes.alloc(@as(usize, n) * dim + base.limits.code_padding, .{ .huge_pages = true });
        errdefer memory.free();
        const factor_memory = try base.AlignedBytes.alloc(@as(usize, n) * @sizeOf(PairFactors), .{ .huge_pages = true });
        return .{
            .n = n,
            .dim = dim,
            .memory = memory,
            .codes = memory.bytes,
            .factor_memory = factor_memory,
            .factors = std.mem.bytesAsSlice(PairFactors, factor_memory.bytes),
        };
    }

    pub fn deinit(self: *BuildCodes) void {
        self.memory.free();
        self.factor_memory.free();
        self.* = undefined;
    }

    /// Parameters of an `Encoder` for `set`.
    pub fn params_of(dim: u32) encode.CodeParams {
        return .{ .dim = dim, .memory_bits = bits, .record_bits = 0 };
    }

    /// Encodes vector `id`. Threads may set different ids at once, each with an encoder and `scratch` of its own.
    pub fn set(self: *BuildCodes, id: u32, encoder: *encode.Encoder, o: []const f32, scratch: []u16) void {
        const factors = encoder.encode(o, scratch);
        var sum: i32 = 0;
        for (self.codes[@as(usize, id) * self.dim ..][0..self.dim], scratch) |*u, wide| {
            u.* = @intCast(wide);
            sum += wide;
        }
        self.factors[id] = .{ .norm2 = factors.norm2, .f = factors.f_full, .sum = sum };
    }

    /// One vector made ready to be compared with many: v = u − 128 as i8, and the terms that do not depend on the others.
    pub const Plane = struct {
        v: []align(64) i8,
        terms: abi.PairTerms = .{ .norm2 = 0, .f = 0, .bias = 0 },

        pub fn init(alloc: std.mem.Allocator, dim: u32) std.mem.Allocator.Error!Plane {
            const v = try alloc.alignedAlloc(i8, .@"64", std.mem.alignForward(usize, dim, 64));
            @memset(v, 0);
            return .{ .v = v };
        }

        pub fn deinit(self: *Plane, alloc: std.mem.Allocator) void {
            alloc.free(self.v);
            self.* = undefined;
        }
    };

    pub fn prepare(self: *const BuildCodes, from: u32, plane: *Plane) void {
        assert(from < self.n and plane.v.len == std.mem.alignForward(usize, self.dim, 64));
        @setRuntimeSafety(builtin.mode == .Debug); // measured (decisions/0007)
        for (self.codes[@as(usize, from) * self.dim ..][0..self.dim], plane.v[0..self.dim]) |u, *v| v.* = @bitCast(u ^ 0x80);
        const factors = self.factors[from];
        const dim: i32 = @intCast(self.dim);
        // 2·⟨x̄,x̄'⟩ = 2·Σ u'v + Σ u' − 255·Σ (v + 0.5), where Σ v = Σ u − 128·dim.
        plane.terms = .{
            .norm2 = factors.norm2,
            .f = factors.f,
            .bias = -255 * (factors.sum - 128 * dim) - 255 * @divExact(dim, 2),
        };
    }

    /// Squared distances from the prepared vector, estimated; never below zero.
    pub fn distances_prepared(self: *const BuildCodes, plane: *const Plane, ids: []const u32, out: []f32) void {
        assert(ids.len == out.len);
        dispatch.kernels().pair_gather(plane.v.ptr, self.dim, self.codes.ptr, self.factors.ptr, ids.ptr, @intCast(ids.len), &plane.terms, out.ptr);
    }

    pub fn distances(self: *const BuildCodes, from: u32, ids: []const u32, out: []f32) void {
        @setRuntimeSafety(builtin.mode == .Debug); // measured (decisions/0007)
        var v: [std.mem.alignForward(usize, base.limits.dim_code_max, 64)]i8 align(64) = undefined;
        const width = std.mem.alignForward(usize, self.dim, 64);
        @memset(v[self.dim..width], 0);
        var plane = Plane{ .v = v[0..width] };
        self.prepare(from, &plane);
        self.distances_prepared(&plane, ids, out);
    }

    pub fn distance(self: *const BuildCodes, a: u32, b: u32) f32 {
        var out: [1]f32 = undefined;
        self.distances(a, &.{b}, &out);
        return out[0];
    }
};

/// The same codes compared by −2·⟨x,y⟩. Codes must be those of vectors that nothing was subtracted from.
pub const ProductCodes = struct {
    n: u32,
    dim: u32,
    codes: *const BuildCodes,

    pub const is_product = true;
    pub const Plane = BuildCodes.Plane;

    pub fn of(codes: *const BuildCodes) ProductCodes {
        return .{ .n = codes.n, .dim = codes.dim, .codes = codes };
    }

    pub fn prepare(self: *const ProductCodes, from: u32, plane: *Plane) void {
        self.codes.prepare(from, plane);
    }

    pub fn distances_prepared(self: *const ProductCodes, plane: *const Plane, ids: []const u32, out: []f32) void {
        self.codes.distances_prepared(plane, ids, out);
        self.less_lengths(plane.terms.norm2, ids, out);
    }

    pub fn distances(self: *const ProductCodes, from: u32, ids: []const u32, out: []f32) void {
        self.codes.distances(from, ids, out);
        self.less_lengths(self.codes.factors[from].norm2, ids, out);
    }

    pub fn distance(self: *const ProductCodes, a: u32, b: u32) f32 {
        var out: [1]f32 = undefined;
        self.distances(a, &.{b}, &out);
        return out[0];
    }

    pub fn norm2(self: *const ProductCodes, id: u32) f32 {
        return self.codes.factors[id].norm2;
    }

    /// −2·⟨x,y⟩ = |x − y|² − |x|² − |y|²
    fn less_lengths(self: *const ProductCodes, own: f32, ids: []const u32, out: []f32) void {
        for (ids, out) |id, *value| value.* -= own + self.norm2(id);
    }
};

/// The same codes compared by direction, and by length as far as that decides which are answers: what queries by product find
/// together. 2 − 2·cos, and a share of the squared logarithm of the ratio of lengths.
pub const DirectionCodes = struct {
    n: u32,
    dim: u32,
    codes: *const BuildCodes,

    pub const Plane = BuildCodes.Plane;

    pub fn of(codes: *const BuildCodes) DirectionCodes {
        return .{ .n = codes.n, .dim = codes.dim, .codes = codes };
    }

    pub fn prepare(self: *const DirectionCodes, from: u32, plane: *Plane) void {
        self.codes.prepare(from, plane);
    }

    pub fn distances_prepared(self: *const DirectionCodes, plane: *const Plane, ids: []const u32, out: []f32) void {
        self.codes.distances_prepared(plane, ids, out);
        self.turn(plane.terms.norm2, ids, out);
    }

    pub fn distances(self: *const DirectionCodes, from: u32, ids: []const u32, out: []f32) void {
        self.codes.distances(from, ids, out);
        self.turn(self.codes.factors[from].norm2, ids, out);
    }

    pub fn distance(self: *const DirectionCodes, a: u32, b: u32) f32 {
        var out: [1]f32 = undefined;
        self.distances(a, &.{b}, &out);
        return out[0];
    }

    const length_weight = 0.25;
    const opposite = 4;

    fn turn(self: *const DirectionCodes, norm2: f32, ids: []const u32, out: []f32) void {
        for (ids, out) |id, *value| {
            const other = self.codes.factors[id].norm2;
            const product = @sqrt(norm2) * @sqrt(other);
            if (!(product > 0)) {
                value.* = if (norm2 == other) 0 else opposite;
                continue;
            }
            // 2 − 2·cos from |x − y|² = (|x| − |y|)² + 2·|x||y|·(1 − cos)
            const gap = @sqrt(norm2) - @sqrt(other);
            const half = @log(norm2 / other) / 2;
            value.* = @max(0, value.* - gap * gap) / product + length_weight * half * half;
        }
    }
};
