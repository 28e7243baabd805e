//! From rows as they come to the working space, and from what is compared there to what users see (docs/rabitq.md):
//!
//!   l2      as it is; squared L2
//!   cosine  normalised; squared L2, which is 2 (1 - cosine)
//!   ip      as it is; -2 times the inner product
const std = @import("std");
const quant = @import("quant");
const base = @import("base");
const assert = std.debug.assert;

pub const Metric = enum(i32) {
    l2 = 0,
    ip = 1,
    cosine = 2,
};

pub const Dtype = enum(i32) {
    f32 = 0,
    f16 = 1,
    u8 = 2,
    i8 = 3,

    pub fn bytes(self: Dtype) u32 {
        return switch (self) {
            .f32 => 4,
            .f16 => 2,
            .u8, .i8 => 1,
        };
    }
};

pub fn form(metric: Metric) quant.Form {
    return if (metric == .ip) .product else .distance;
}

/// One row as float32. `row` holds out.len elements.
pub fn convert(dtype: Dtype, row: []const u8, out: []f32) void {
    switch (dtype) {
        .f32 => @memcpy(std.mem.sliceAsBytes(out), row[0 .. out.len * 4]),
        .f16 => for (std.mem.bytesAsSlice(f16, row[0 .. out.len * 2]), out) |value, *slot| {
            slot.* = value;
        },
        .u8 => for (row[0..out.len], out) |value, *slot| {
            slot.* = @floatFromInt(value);
        },
        .i8 => for (std.mem.bytesAsSlice(i8, row[0..out.len]), out) |value, *slot| {
            slot.* = @floatFromInt(value);
        },
    }
}

/// Largest finite magnitude a coordinate may have: squares of sums stay finite in float32.
pub const magnitude_max = 1e16;

pub fn is_finite(row: []const f32) bool {
    var bad: u32 = 0;
    for (row) |value| bad |= @intFromBool(!(@abs(value) <= magnitude_max)); // NaN compares false
    return bad == 0;
}

pub fn norm2(row: []const f32) f32 {
    var sum: f64 = 0;
    for (row) |value| sum += @as(f64, value) * value;
    return @floatCast(sum);
}

/// Scales a row to length 1 in place; a zero row stays zero.
fn normalise(row: []f32) void {
    const square = norm2(row);
    if (square <= 0) return;
    const scale: f32 = 1 / @sqrt(square);
    for (row) |*value| value.* *= scale;
}

/// The row that was given, from what is nearly that: elements of a type that is not as fine as float32 were numbers of it.
/// Of cosine a direction is all that is known, and a row near zero was zero, for all others have length 1.
pub fn nearest_given(metric: Metric, dtype: Dtype, row: []f32) void {
    if (metric == .cosine) {
        if (norm2(row) < 0.25) @memset(row, 0);
        return;
    }
    for (row) |*value| value.* = switch (dtype) {
        .f32 => std.math.clamp(value.*, -magnitude_max, magnitude_max),
        .f16 => @as(f16, @floatCast(std.math.clamp(value.*, -std.math.floatMax(f16), std.math.floatMax(f16)))),
        .u8 => std.math.clamp(@round(value.*), 0, 255),
        .i8 => std.math.clamp(@round(value.*), -128, 127),
    };
}

/// Brings a row or a query into the working space.
pub fn place(metric: Metric, row: []f32) void {
    if (metric == .cosine) normalise(row);
}

/// The compared distance, as a multiple of the reported one.
pub fn compared_scale(metric: Metric) f32 {
    return if (metric == .l2) 1 else 2;
}

/// The distance that users see, from the distance in the working space. Factors of a damaged file may make it infinite; then it is
/// the largest finite number, because infinity stands for no neighbor.
pub fn reported(metric: Metric, compared: f32) f32 {
    const finite = std.math.clamp(compared, -std.math.floatMax(f32), std.math.floatMax(f32));
    return switch (metric) {
        .l2 => @max(0, finite),
        .cosine => @max(0, finite) / 2,
        .ip => finite / 2,
    };
}

// ---- means that far rows do not move ----
//
// The middle of the data, whatever a few far rows do: a mean and a sample for centers that no single row can move.

/// A row this many times as far out as the row in the middle is far.
const far = 4;
/// Rows that the first guess of the middle is made of.
const guess_rows = 256;

/// The mean of the rows of `sample` that are not far: those within four times the middle distance to the middle of
/// each coordinate. `sample` holds rows of `stride` elements; the first `out.len` of each count.
pub fn mean(allocator: std.mem.Allocator, sample: []const f32, stride: usize, out: []f32) error{OutOfMemory}!void {
    const count = sample.len / stride;
    assert(count > 0);
    const guess = @min(count, guess_rows);
    const column = try allocator.alloc(f32, @max(count, guess));
    defer allocator.free(column);
    for (out, 0..) |*middle, i| {
        for (column[0..guess], 0..) |*value, row| value.* = sample[row * count / guess * stride + i];
        middle.* = median(column[0..guess]);
    }
    const distances = try base.alloc_untouched(allocator, f32, count);
    defer base.free_untouched(allocator, distances);
    for (distances, 0..) |*distance, row| {
        var sum: f64 = 0;
        for (sample[row * stride ..][0..out.len], out) |value, middle| sum += (@as(f64, value) - middle) * (@as(f64, value) - middle);
        distance.* = @floatCast(sum);
    }
    @memcpy(column[0..count], distances);
    const limit = far * far * median(column[0..count]);
    const sums = try base.alloc_untouched(allocator, f64, out.len);
    defer base.free_untouched(allocator, sums);
    @memset(sums, 0);
    var near: f64 = 0;
    for (distances, 0..) |distance, row| if (distance <= limit) {
        for (sums, sample[row * stride ..][0..out.len]) |*sum, value| sum.* += value;
        near += 1;
    };
    for (out, sums) |*value, sum| value.* = @floatCast(sum / near);
}

/// The square of a length that hardly any row has, of rows around their mean: longer ones lie outside.
pub fn remote_norm2(allocator: std.mem.Allocator, sample: []const f32, dim: usize) error{OutOfMemory}!f32 {
    const count = sample.len / dim;
    const lengths2 = try base.alloc_untouched(allocator, f32, count);
    defer base.free_untouched(allocator, lengths2);
    for (lengths2, 0..) |*length2, row| length2.* = quant.kernels().sum_squares(sample.ptr + row * dim, @intCast(dim));
    std.mem.sortUnstable(f32, lengths2, {}, std.sort.asc(f32));
    const longest = lengths2[count - 1 - count / 1000];
    return if (longest > 0) @min(outside * outside * longest, std.math.floatMax(f32)) else std.math.floatMax(f32);
}

/// A query this many times as long as nearly all rows lies outside.
const outside = 1.5;

/// Pulls rows that are far from the origin in to where they no longer draw centers away from all others.
pub fn pull_in(allocator: std.mem.Allocator, sample: []f32, dim: usize) error{OutOfMemory}!void {
    const count = sample.len / dim;
    const lengths2 = try base.alloc_untouched(allocator, f32, 2 * count);
    defer base.free_untouched(allocator, lengths2);
    for (lengths2[0..count], 0..) |*length2, row| length2.* = quant.kernels().sum_squares(sample.ptr + row * dim, @intCast(dim));
    @memcpy(lengths2[count..], lengths2[0..count]);
    const limit2 = far * far * median(lengths2[count..]);
    if (!(limit2 > 0)) return;
    for (lengths2[0..count], 0..) |length2, row| if (length2 > limit2) {
        const scale = @sqrt(limit2 / length2);
        for (sample[row * dim ..][0..dim]) |*value| value.* *= scale;
    };
}

fn median(values: []f32) f32 {
    std.mem.sortUnstable(f32, values, {}, std.sort.asc(f32));
    return values[values.len / 2];
}

test "a row that is nearly another becomes it, as its type and its metric tell" {
    var row = [_]f32{ 3.4, -0.3, 255.2, 1e17 };
    nearest_given(.l2, .u8, &row);
    try std.testing.expectEqualSlices(f32, &.{ 3, 0, 255, 255 }, &row);
    row = .{ -129.6, 2.5001, -0.4, 300 };
    nearest_given(.ip, .i8, &row);
    try std.testing.expectEqualSlices(f32, &.{ -128, 3, 0, 127 }, &row);
    row = .{ 1.0001, 7e4, -1e17, 0 };
    nearest_given(.ip, .f16, &row);
    try std.testing.expectEqualSlices(f32, &.{ 1, 65504, -65504, 0 }, &row);
    row = .{ 1.0001, 7e4, -1e17, 0 };
    nearest_given(.l2, .f32, &row);
    try std.testing.expectEqualSlices(f32, &.{ 1.0001, 7e4, -1e16, 0 }, &row);
    try std.testing.expect(is_finite(&row));
    var direction = [_]f32{ 0.6, -0.8 };
    nearest_given(.cosine, .u8, &direction);
    try std.testing.expectEqualSlices(f32, &.{ 0.6, -0.8 }, &direction);
    direction = .{ 0.01, -0.02 };
    nearest_given(.cosine, .f32, &direction);
    try std.testing.expectEqualSlices(f32, &.{ 0, 0 }, &direction);
}

test "values that are not finite, or would overflow, are reported" {
    try std.testing.expect(is_finite(&.{ 0, -1e15, 3 }));
    try std.testing.expect(!is_finite(&.{ 0, std.math.nan(f32) }));
    try std.testing.expect(!is_finite(&.{std.math.inf(f32)}));
    try std.testing.expect(!is_finite(&.{1e30}));
}

test "one far row, or a tenth of them, moves neither the mean nor the others" {
    const seed = std.testing.random_seed;
    errdefer std.debug.print("seed={d}\n", .{seed});
    var prng = std.Random.DefaultPrng.init(seed);
    const alloc = std.testing.allocator;
    const dim = 16;
    const n = 500;
    var rows: [n * dim]f32 = undefined;
    for (&rows) |*x| x.* = 5 + prng.random().floatNorm(f32);
    for (rows[0 .. n / 10 * dim]) |*x| x.* *= 1e6;
    var found: [dim]f32 = undefined;
    try mean(alloc, &rows, dim, &found);
    for (found) |value| try std.testing.expectApproxEqAbs(5, value, 0.4);
    for (&rows, 0..) |*x, i| x.* -= found[i % dim];
    try pull_in(alloc, &rows, dim);
    for (rows) |x| try std.testing.expect(@abs(x) < 4 * 12);
}

test "copies of one row have it as their mean" {
    var rows: [40 * 16]f32 = @splat(3);
    var found: [16]f32 = undefined;
    try mean(std.testing.allocator, &rows, 16, &found);
    for (found) |value| try std.testing.expectEqual(3, value);
    @memset(&rows, 0);
    try pull_in(std.testing.allocator, &rows, 16);
}
