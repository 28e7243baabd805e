//! From rows as they come to the working space in which everything is squared L2 (docs/rabitq.md):
//!
//!   l2      as it is
//!   cosine  normalised; 1 - cosine is half the squared distance
//!   ip      one more coordinate sqrt(M^2 - |x|^2), M the largest norm of a row, 0 for queries
const std = @import("std");
const Metric = @import("reader.zig").Metric;
const Dtype = @import("reader.zig").Dtype;

pub fn dim_work(metric: Metric, dim: u32) u32 {
    return if (metric == .ip) dim + 1 else dim;
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
pub fn normalise(row: []f32) void {
    const square = norm2(row);
    if (square <= 0) return;
    const scale: f32 = 1 / @sqrt(square);
    for (row) |*value| value.* *= scale;
}

/// `row` has dim_work coordinates, of which the first `dim` are filled; brings it into the working space.
pub fn place_row(metric: Metric, row: []f32, norm_max: f32) void {
    switch (metric) {
        .l2 => {},
        .cosine => normalise(row),
        .ip => row[row.len - 1] = @sqrt(@max(0, norm_max * norm_max - norm2(row[0 .. row.len - 1]))),
    }
}

pub fn place_query(metric: Metric, row: []f32) void {
    switch (metric) {
        .l2 => {},
        .cosine => normalise(row),
        .ip => row[row.len - 1] = 0,
    }
}

/// What users see, from a squared distance of the working space. `query_norm2` is that of the query in that space.
pub fn reported(metric: Metric, distance2: f32, query_norm2: f32, norm_max: f32) f32 {
    return switch (metric) {
        .l2 => @max(0, distance2),
        .cosine => @max(0, distance2) / 2,
        .ip => (distance2 - norm_max * norm_max - query_norm2) / 2,
    };
}

test "the inner product comes back from the working space" {
    const x = [_]f32{ 3, -1, 2 };
    const q = [_]f32{ 0.5, 2, -1 };
    var row = [_]f32{ 3, -1, 2, 0 };
    var query = [_]f32{ 0.5, 2, -1, 9 };
    place_row(.ip, &row, 5);
    place_query(.ip, &query);
    var d2: f32 = 0;
    for (row, query) |a, b| d2 += (a - b) * (a - b);
    var dot: f32 = 0;
    for (x, q) |a, b| dot += a * b;
    try std.testing.expectApproxEqAbs(-dot, reported(.ip, d2, norm2(&query), 5), 1e-4);
    try std.testing.expectApproxEqAbs(25, norm2(&row), 1e-4);
}

test "what is not finite, or would overflow, is told" {
    try std.testing.expect(is_finite(&.{ 0, -1e15, 3 }));
    try std.testing.expect(!is_finite(&.{ 0, std.math.nan(f32) }));
    try std.testing.expect(!is_finite(&.{std.math.inf(f32)}));
    try std.testing.expect(!is_finite(&.{1e30}));
}
