//! A filter over data of which some rows are dead says what the filter says, of the rows that live.
const std = @import("std");
const base = @import("base");
const column = @import("column.zig");
const predicate = @import("predicate.zig");
const Writer = @import("writer_test.zig").Writer;
const Diagnostic = @import("diagnostic.zig").Diagnostic;
const Filter = predicate.Filter;
const testing = std.testing;

const n = 3000;

test "restricted filters agree with both of what they are made of, whichever way they are asked" {
    var prng = base.Prng.init(23);
    var values: [n]i32 = undefined;
    for (&values) |*value| value.* = @intCast(prng.below(100));
    var columns = try column.Columns.init(testing.allocator, n);
    defer columns.deinit();
    var diagnostic = Diagnostic{};
    const given = column.Column{ .name = "n", .type = .i32, .row_count = n, .validity = null, .values = @ptrCast(&values), .values_count = n };
    try columns.add(given, &diagnostic);
    for ([_]u64{ 0, 1, 10, 100 }) |percent| for ([_]u64{ 0, 1, 30, 99 }) |below| for ([_]bool{ false, true }) |resolved| {
        var bits: [(n + 7) / 8]u8 = @splat(0);
        for (0..n) |row| if (prng.below(100) < percent) {
            bits[row / 8] |= @as(u8, 1) << @intCast(row % 8);
        };
        const rows = try Filter.from_mask(testing.allocator, &bits, n);
        defer rows.deinit();
        var writer = Writer{ .alloc = testing.allocator, .columns = &.{given} };
        defer writer.deinit();
        try writer.leaf(.range, 0, &.{ 0, below });
        const bytes = try writer.finish();
        defer testing.allocator.free(bytes);
        const inner = try Filter.compile(testing.allocator, &columns, bytes, &diagnostic);
        defer inner.deinit();
        try testing.expectError(error.InvalidArgument, Filter.restrict(testing.allocator, rows, inner)); // no mask
        const both = try Filter.restrict(testing.allocator, inner, rows);
        defer both.deinit();
        if (resolved) _ = try both.resolve();
        var expected: u64 = 0;
        var vertices: [n]u32 = undefined;
        var passes: [n]bool = undefined;
        for (&vertices, 0..) |*vertex, i| vertex.* = @intCast(i);
        both.passes_many(&vertices, &passes);
        for (0..n) |row| {
            const live = (bits[row / 8] >> @intCast(row % 8)) & 1 == 1;
            const wanted = live and values[row] >= 0 and values[row] <= below;
            expected += @intFromBool(wanted);
            try testing.expectEqual(wanted, both.passes(@intCast(row)));
            try testing.expectEqual(wanted, passes[row]);
            try testing.expectEqual(wanted, (both.matching_word(row / 64) >> @intCast(row % 64)) & 1 == 1);
        }
        try testing.expectEqual(expected, both.count(null));
        var matches = try both.matches();
        try testing.expectEqual(expected, matches.count());
        while (matches.next()) |row| try testing.expect(passes[row]);
        if (both.estimate() == 0) try testing.expectEqual(0, expected);
        if (percent == 0) try testing.expectEqual(0, both.estimate());
    };
}
