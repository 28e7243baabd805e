//! Codes side by side, for scans of few thousand rows: a block holds the codes of `rows` rows in the layout of kernels/abi.zig
//! (`block_rows`). The estimates are those of single codes, to the bit, at a fraction of the instructions.
const std = @import("std");
const assert = std.debug.assert;
const base = @import("base");
const abi = @import("kernels/abi.zig");
const encode = @import("encode.zig");
const scalar = @import("kernels/scalar.zig");
const Query = @import("query.zig").Query;

pub const rows = abi.block_rows;

/// Bits that a value of so many takes in a block.
pub fn cell_of(bits: u8) u32 {
    return std.math.ceilPowerOfTwoAssert(u32, bits);
}

pub fn block_bytes(dim: u32, bits: u8) usize {
    return abi.block_words(dim, cell_of(bits)) * 4 * rows;
}

/// Puts a packed code into its place; the block holds zeros there.
pub fn put(dim: u32, bits: u8, block: []u8, row: usize, code: []const u8) void {
    assert(block.len == block_bytes(dim, bits) and row < rows);
    const cell = cell_of(bits);
    const each = 32 / cell;
    for (0..dim) |i| {
        const within = i % each;
        const value: u8 = @intCast(scalar.code_at(code.ptr, i, bits));
        block[(i / each * rows + row) * 4 + within % 4] |= value << @intCast(within / 4 * cell);
    }
}

/// Bounds of what the estimates of some codes err by.
pub const Errors = struct {
    /// |o|², and |o|²·tan² of the angle between the code and o.
    norm2: f32,
    spread2: f32,
    /// Of an estimate, by the rounding of its offset to a `PositiveFloat`.
    rounding: f32,

    pub const none: Errors = .{ .norm2 = 0, .spread2 = 0, .rounding = 0 };

    pub fn add(self: *Errors, norm2: f32, tan2: f32, offset: f32) void {
        self.norm2 = @max(self.norm2, norm2);
        self.spread2 = @max(self.spread2, norm2 * tan2);
        self.rounding = @max(self.rounding, offset / 512);
    }
};

/// The codes of an index in blocks, as many as are full: rows behind the last one are left to single estimates.
pub const Blocks = struct {
    memory: base.AlignedBytes,
    count: u32,
    errors: Errors,

    pub fn init(codes: *const encode.Codes) error{OutOfMemory}!Blocks {
        const dim, const bits = .{ codes.params.dim, codes.params.memory_bits };
        const size = block_bytes(dim, bits);
        const count = codes.n / rows;
        const memory: base.AlignedBytes = try .alloc(count * size, .{});
        var errors: Errors = .none;
        for (0..count * rows) |row| {
            const vertex: u32 = @intCast(row);
            put(dim, bits, memory.bytes[row / rows * size ..][0..size], row % rows, codes.code(vertex)[0..codes.params.upper_bytes()]);
            errors.add(codes.norm2_of(vertex), codes.tan_upper * codes.tan_upper, codes.offset_of(vertex));
        }
        return .{ .memory = memory, .count = count, .errors = errors };
    }

    /// Some blocks, one after the other.
    pub fn bytes(self: *const Blocks, codes: *const encode.Codes, first: u32, count: u32) []align(64) const u8 {
        const size = block_bytes(codes.params.dim, codes.params.memory_bits);
        return @alignCast(self.memory.bytes[first * size ..][0 .. count * size]);
    }

    pub fn deinit(self: *Blocks) void {
        self.memory.free();
    }

    /// Bytes for the blocks of an index.
    pub fn byte_len(params: encode.CodeParams, n: u32) usize {
        return n / rows * block_bytes(params.dim, params.memory_bits);
    }

    pub fn memory_bytes(self: *const Blocks) u64 {
        return self.memory.bytes.len;
    }
};

test "beyond the farthest estimate no code is within reach, and just before it the code that errs most is" {
    const seed = std.testing.random_seed;
    errdefer std.debug.print("seed={d}\n", .{seed});
    var prng = base.Prng.init(seed);
    const allocator = std.testing.allocator;
    const params: encode.CodeParams = .{ .dim = 16, .memory_bits = 2, .record_bits = 0 };
    var query: Query = try .init(allocator, params);
    defer query.deinit(allocator);
    for ([_]encode.Form{ .distance, .product }) |form| for (0..2000) |_| {
        const factors = [1]u32{@as(u32, encode.PositiveFloat.encode(prng.float())) << 16};
        const codes: encode.Codes = .{
            .params = params,
            .n = 1,
            .bytes = &.{},
            .factors = &factors,
            .center_ids = &.{0},
            .centers = &.{},
            .form = form,
            .norm2_per_f2 = 10 * prng.float(),
            .tan_upper = prng.float(),
            .tan_full = 0,
        };
        query.form = form;
        query.tan_upper = codes.tan_upper;
        query.norm2 = 20 * prng.float();
        query.coarse_error2 = 1e-3 * prng.float();
        var errors: Errors = .none;
        errors.add(codes.norm2_of(0), codes.tan_upper * codes.tan_upper, 0);
        const deviations = 6 * prng.float();
        const reach = 10 * prng.float();
        const farthest = query.farthest_estimate(errors, deviations, reach);
        for ([_]f32{ 1.001, 1.1, 5 }) |share| {
            const estimate = farthest * share;
            try std.testing.expect(estimate - deviations * query.sigma_upper(&codes, 0, estimate) >= reach);
        }
        try std.testing.expect(farthest * 0.999 - deviations * query.sigma_upper(&codes, 0, farthest * 0.999) <= reach);
        try std.testing.expectEqual(std.math.inf(f32), query.farthest_estimate(errors, std.math.inf(f32), reach));
    };
}
