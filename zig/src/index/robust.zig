//! Where data lie, whatever a few far rows do: a mean and a sample for centers that no single row can move.
const std = @import("std");
const base = @import("base");
const assert = std.debug.assert;
const quant = @import("quant");

/// A row this many times as far out as the row in the middle is far.
const far = 4;
/// Rows that the first guess of the middle is made of.
const guess_rows = 256;

/// The mean of the rows of `sample` that are not far: those within four times the middle distance to the middle of
/// each coordinate. `sample` holds rows of `stride` elements, of which the first `out.len` count.
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
