//! From rows as they come to the working space, and from what is compared there to what users see (docs/rabitq.md):
//!
//!   l2      as it is; squared L2
//!   cosine  normalised; squared L2, of which half is 1 - cosine
//!   ip      as it is; -2 times the inner product
const std = @import("std");
const quant = @import("quant");
const Metric = @import("reader.zig").Metric;
const Dtype = @import("reader.zig").Dtype;

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
pub fn normalise(row: []f32) void {
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

/// How many times what users see is compared.
pub fn compared_scale(metric: Metric) f32 {
    return if (metric == .l2) 1 else 2;
}

/// What users see, from what is compared in the working space. Factors of a damaged file may make it infinite; then it is
/// the largest number there is, for infinity says that there is no neighbor.
pub fn reported(metric: Metric, compared: f32) f32 {
    const finite = std.math.clamp(compared, -std.math.floatMax(f32), std.math.floatMax(f32));
    return switch (metric) {
        .l2 => @max(0, finite),
        .cosine => @max(0, finite) / 2,
        .ip => finite / 2,
    };
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

test "what is not finite, or would overflow, is told" {
    try std.testing.expect(is_finite(&.{ 0, -1e15, 3 }));
    try std.testing.expect(!is_finite(&.{ 0, std.math.nan(f32) }));
    try std.testing.expect(!is_finite(&.{std.math.inf(f32)}));
    try std.testing.expect(!is_finite(&.{1e30}));
}
