//! Distances from the vectors themselves, in float64, as users see them (docs/FORMAT.md, "Distances").
const std = @import("std");

const lanes = 8;
const Lanes = @Vector(lanes, f64);

pub fn sum_squares(values: []const f32) f64 {
    return sums(f32, values, std.mem.sliceAsBytes(values)).product;
}

/// From a query to a row as it was given; `query2` is the query's sum of squares. `metric` and `dtype` are enums of these names.
pub fn distance(metric: anytype, dtype: anytype, query: []const f32, query2: f64, row: []const u8) f64 {
    const found = switch (dtype) {
        .f32 => sums(f32, query, row),
        .f16 => sums(f16, query, row),
        .u8 => sums(u8, query, row),
        .i8 => sums(i8, query, row),
    };
    return switch (metric) {
        .l2 => found.difference2,
        .ip => 0 - found.product, // and no negative zero
        .cosine => of_angle(found.product, query2, found.row2),
    };
}

/// 1 − cosine; where a row or a query is zero, half the squared distance of what is left after scaling to length 1. The
/// root of a product, so that the distance to itself is 0: √(a·a) is a.
fn of_angle(product: f64, query2: f64, row2: f64) f64 {
    if (query2 == 0 or row2 == 0) return if (query2 == row2) 0 else 0.5;
    return @max(0, 1 - product / @sqrt(query2 * row2));
}

const Sums = struct { product: f64, row2: f64, difference2: f64 };

fn sums(comptime T: type, query: []const f32, row: []const u8) Sums {
    const size = @sizeOf(T);
    var product: Lanes = @splat(0);
    var row2: Lanes = @splat(0);
    var difference2: Lanes = @splat(0);
    var at: usize = 0;
    while (at < query.len) : (at += lanes) {
        // The rest is padded with zeros, which add nothing.
        var q: [lanes]f32 = @splat(0);
        var x: [lanes * size]u8 = @splat(0);
        const count: usize = @min(lanes, query.len - at);
        if (count == lanes) {
            q = query[at..][0..lanes].*;
            x = row[at * size ..][0 .. lanes * size].*;
        } else {
            @memcpy(q[0..count], query[at..]);
            @memcpy(x[0 .. count * size], row[at * size ..][0 .. count * size]);
        }
        const wide_q: Lanes = @floatCast(@as(@Vector(lanes, f32), q));
        const elements: @Vector(lanes, T) = @bitCast(x);
        const wide_x: Lanes = if (@typeInfo(T) == .float) @floatCast(elements) else @floatFromInt(elements);
        const difference = wide_q - wide_x;
        product += wide_q * wide_x;
        row2 += wide_x * wide_x;
        difference2 += difference * difference;
    }
    return .{ .product = @reduce(.Add, product), .row2 = @reduce(.Add, row2), .difference2 = @reduce(.Add, difference2) };
}

const Metric = enum { l2, ip, cosine };
const Dtype = enum { f32, f16, u8, i8 };

test "sums over any length are those of a plain loop, and a row is at 0 from itself" {
    const seed = std.testing.random_seed;
    errdefer std.debug.print("seed={d}\n", .{seed});
    var prng = std.Random.DefaultPrng.init(seed);
    const random = prng.random();
    inline for (.{ f32, f16, u8, i8 }, .{ Dtype.f32, Dtype.f16, Dtype.u8, Dtype.i8 }) |T, dtype| {
        for (1..40) |dim| {
            var row: [40]T = undefined;
            var query: [40]f32 = undefined;
            var itself: [40]f32 = undefined;
            for (row[0..dim], query[0..dim], itself[0..dim]) |*x, *q, *same| {
                x.* = if (@typeInfo(T) == .float) @floatCast(random.floatNorm(f32)) else random.intRangeAtMost(T, 1, 100);
                same.* = if (@typeInfo(T) == .float) @floatCast(x.*) else @floatFromInt(x.*);
                q.* = 20 * random.floatNorm(f32);
            }
            var product: f64 = 0;
            var row2: f64 = 0;
            var difference2: f64 = 0;
            for (itself[0..dim], query[0..dim]) |x, q| {
                product += @as(f64, x) * q;
                row2 += @as(f64, x) * x;
                difference2 += (@as(f64, x) - q) * (@as(f64, x) - q);
            }
            const bytes = std.mem.sliceAsBytes(row[0..dim]);
            const query2 = sum_squares(query[0..dim]);
            const cosine = 1 - product / @sqrt(query2 * row2);
            try std.testing.expectApproxEqRel(difference2, distance(Metric.l2, dtype, query[0..dim], query2, bytes), 1e-13);
            try std.testing.expectApproxEqAbs(-product, distance(Metric.ip, dtype, query[0..dim], query2, bytes), 1e-13 * @sqrt(query2 * row2));
            try std.testing.expectApproxEqAbs(@max(0, cosine), distance(Metric.cosine, dtype, query[0..dim], query2, bytes), 1e-13);
            const own2 = sum_squares(itself[0..dim]);
            try std.testing.expectEqual(0, distance(Metric.l2, dtype, itself[0..dim], own2, bytes));
            try std.testing.expectEqual(0, distance(Metric.cosine, dtype, itself[0..dim], own2, bytes));
        }
    }
    const zero: [3]f32 = @splat(0);
    const one = [3]f32{ 1, 0, 0 };
    try std.testing.expectEqual(0, distance(Metric.cosine, Dtype.f32, &zero, 0, std.mem.sliceAsBytes(&zero)));
    try std.testing.expectEqual(0.5, distance(Metric.cosine, Dtype.f32, &zero, 0, std.mem.sliceAsBytes(&one)));
    try std.testing.expectEqual(0.5, distance(Metric.cosine, Dtype.f32, &one, 1, std.mem.sliceAsBytes(&zero)));
}
