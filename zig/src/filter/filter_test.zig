//! Filters against an interpreter: random programs over random columns, masks, estimates, and threads that ask at once.
const std = @import("std");
const base = @import("base");
const column_room = @import("column.zig");
const program = @import("program.zig");
const predicate = @import("predicate.zig");
const random_table = @import("random_table_test.zig");
const check_program = @import("random_table_test.zig").check_program;
const Diagnostic = @import("column.zig").Diagnostic;
const Writer = @import("random_table_test.zig").Writer;
const testing = std.testing;
const Table = random_table.Table;
const random_tree = random_table.random_tree;
const with_postings = random_table.with_postings;
const Column = column_room.Column;
const Columns = column_room.Columns;
const Filter = predicate.Filter;
const Opcode = program.Opcode;

test "random programs say what the interpreter says, in every form" {
    var prng = base.Prng.init(20261);
    for ([_]usize{ 1, 5, 63, 64, 65, 300, 1999 }) |n| for ([_]bool{ false, true }) |mapped| {
        var table: Table = undefined;
        try table.init(n, &prng);
        defer table.deinit();
        var dir = testing.tmpDir(.{});
        defer dir.cleanup();
        if (mapped) try with_postings(&table, &dir);
        defer if (mapped) table.columns.postings.?.deinit();
        for (0..if (n < 1000) 60 else 15) |round| {
            var writer = Writer{ .alloc = testing.allocator, .columns = table.list.items };
            defer writer.deinit();
            try random_tree(&writer, &prng, @intCast(prng.below(5)));
            const bytes = try writer.finish();
            defer testing.allocator.free(bytes);
            errdefer std.debug.print("n = {d}, round {d}, postings {}\n", .{ n, round, mapped });
            try check_program(&table, bytes);
        }
    };
}

test "an empty table has no row that passes" {
    var prng = base.Prng.init(3);
    var table: Table = undefined;
    try table.init(0, &prng);
    defer table.deinit();
    var writer = Writer{ .alloc = testing.allocator, .columns = table.list.items };
    defer writer.deinit();
    try writer.leaf(.is_null, 1, &.{});
    const bytes = try writer.finish();
    defer testing.allocator.free(bytes);
    var diagnostic = Diagnostic{};
    const filter = try Filter.compile(testing.allocator, &table.columns, bytes, &diagnostic);
    defer filter.deinit();
    try testing.expectEqual(0, filter.count(null));
    try testing.expectEqual(0, filter.estimate());
    try testing.expectEqual(0, (try filter.resolve()).count());
}

test "a mask passes what it holds and ignores bits beyond the last row" {
    const bits = [_]u8{ 0b1010_0001, 0xff };
    const filter = try Filter.from_mask(testing.allocator, &bits, 11);
    defer filter.deinit();
    try testing.expectEqual(6, filter.count(null));
    try testing.expectApproxEqAbs(6.0 / 11.0, filter.estimate(), 1e-12);
    try testing.expect(filter.passes(0) and !filter.passes(1) and filter.passes(10));
    try testing.expect(filter.is_resolved());
    try testing.expectError(error.InvalidArgument, Filter.from_mask(testing.allocator, &bits, 17));
    try testing.expectError(error.InvalidArgument, Filter.from_mask(testing.allocator, &bits, 8));
    const none = try Filter.from_mask(testing.allocator, &.{}, 0);
    defer none.deinit();
    try testing.expectEqual(0, none.count(null));
}

test "the estimate follows the share of a large column" {
    const n = 200_000;
    const values = try testing.allocator.alloc(u8, n);
    defer testing.allocator.free(values);
    for (values, 0..) |*value, i| value.* = @intCast(i % 100); // periodic: a sample in step would see one value
    var columns = try Columns.init(testing.allocator, n);
    defer columns.deinit();
    var diagnostic = Diagnostic{};
    const column = Column{ .name = "c", .type = .u8, .row_count = n, .validity = null, .values = values.ptr, .values_count = n };
    try columns.add(column, &diagnostic);
    for ([_]u64{ 1, 10, 50, 90 }) |share| {
        var writer = Writer{ .alloc = testing.allocator, .columns = &.{column} };
        defer writer.deinit();
        try writer.leaf(.range, 0, &.{ 0, share - 1 });
        const bytes = try writer.finish();
        defer testing.allocator.free(bytes);
        const filter = try Filter.compile(testing.allocator, &columns, bytes, &diagnostic);
        defer filter.deinit();
        const p = @as(f64, @floatFromInt(share)) / 100;
        try testing.expectApproxEqAbs(p, filter.estimate(), 4 * @sqrt(p * (1 - p) / 1024));
        try testing.expectEqual(n / 100 * share, filter.count(null));
    }
}

test "a sample that meets no row, or every row, stays cautious" {
    const n = 5000;
    const values: [n]u8 = @splat(7);
    var columns = try Columns.init(testing.allocator, n);
    defer columns.deinit();
    var diagnostic = Diagnostic{};
    const column = Column{ .name = "c", .type = .u8, .row_count = n, .validity = null, .values = &values, .values_count = n };
    try columns.add(column, &diagnostic);
    for ([_]u64{ 7, 8 }, [_]f64{ 1023.5 / 1024.0, 0.5 / 1024.0 }) |value, expected| {
        var writer = Writer{ .alloc = testing.allocator, .columns = &.{column} };
        defer writer.deinit();
        try writer.leaf(.range, 0, &.{ value, value });
        const bytes = try writer.finish();
        defer testing.allocator.free(bytes);
        const filter = try Filter.compile(testing.allocator, &columns, bytes, &diagnostic);
        defer filter.deinit();
        try testing.expectApproxEqAbs(expected, filter.estimate(), 1e-9);
    }
}

test "threads may ask and resolve one filter at once" {
    var prng = base.Prng.init(11);
    var table: Table = undefined;
    try table.init(1999, &prng);
    defer table.deinit();
    var writer = Writer{ .alloc = testing.allocator, .columns = table.list.items };
    defer writer.deinit();
    try writer.leaf(.range, 2, &.{ 0, 5 });
    const bytes = try writer.finish();
    defer testing.allocator.free(bytes);
    var diagnostic = Diagnostic{};
    const filter = try Filter.compile(testing.allocator, &table.columns, bytes, &diagnostic);
    defer filter.deinit();
    const expected = filter.count(null);
    const run = struct {
        fn run(f: *Filter, wanted: u64, wrong: *std.atomic.Value(u32)) void {
            var found: u64 = 0;
            for (0..1999) |row| {
                found += @intFromBool(f.passes(@intCast(row)));
                if (row == 1000) _ = f.resolve() catch unreachable;
            }
            if (found != wanted) _ = wrong.fetchAdd(1, .monotonic);
        }
    }.run;
    var wrong = std.atomic.Value(u32).init(0);
    var threads: [4]std.Thread = undefined;
    for (&threads) |*thread| thread.* = try std.Thread.spawn(.{}, run, .{ filter, expected, &wrong });
    for (threads) |thread| thread.join();
    try testing.expectEqual(0, wrong.load(.monotonic));
}

test "threads may compile over one store at once" {
    var prng = base.Prng.init(12);
    var table: Table = undefined;
    try table.init(300, &prng);
    defer table.deinit();
    table.columns.alloc = std.heap.smp_allocator; // the arena of the table is for one thread
    defer {
        for (table.columns.signatures.values()) |words| std.heap.smp_allocator.free(words);
        table.columns.signatures.deinit(std.heap.smp_allocator);
    }
    var writer = Writer{ .alloc = testing.allocator, .columns = table.list.items };
    defer writer.deinit();
    for ([_]u16{ 24, 25, 26, 27 }) |column| try writer.leaf(.contains_any, column, &.{ 1, 3 });
    try writer.put(.any, 0, 4, &.{});
    const bytes = try writer.finish();
    defer testing.allocator.free(bytes);
    const run = struct {
        fn run(columns: *Columns, program_bytes: []const u8, found: *u64) void {
            var diagnostic = Diagnostic{};
            const filter = Filter.compile(std.heap.smp_allocator, columns, program_bytes, &diagnostic) catch return;
            defer filter.deinit();
            found.* = filter.count(null);
        }
    }.run;
    var found: [4]u64 = @splat(0);
    var threads: [4]std.Thread = undefined;
    for (&threads, &found) |*thread, *one| thread.* = try std.Thread.spawn(.{}, run, .{ &table.columns, bytes, one });
    for (threads) |thread| thread.join();
    try testing.expect(found[0] > 0);
    for (found[1..]) |one| try testing.expectEqual(found[0], one);
}

test "lists without a single element" {
    const offsets: [4]i32 = @splat(0);
    var columns = try Columns.init(testing.allocator, 3);
    defer columns.deinit();
    var diagnostic = Diagnostic{};
    const column = Column{ .name = "tags", .type = .list_i64, .row_count = 3, .validity = null, .values = null, .values_count = 0, .offsets = &offsets };
    try columns.add(column, &diagnostic);
    for ([_]Opcode{ .contains_any, .contains_all }) |opcode| for ([_]usize{ 0, 1, 3, 20 }) |wanted| {
        var writer = Writer{ .alloc = testing.allocator, .columns = &.{column} };
        defer writer.deinit();
        var values: [20]u64 = undefined;
        for (&values, 0..) |*value, i| value.* = 1 << 40 | i * 1_000_000;
        try writer.leaf(opcode, 0, values[0..wanted]);
        const bytes = try writer.finish();
        defer testing.allocator.free(bytes);
        const filter = try Filter.compile(testing.allocator, &columns, bytes, &diagnostic);
        defer filter.deinit();
        const expected: u64 = if (opcode == .contains_all and wanted == 0) 3 else 0;
        try testing.expectEqual(expected, filter.count(null));
    };
}

test "sets as bitmaps end where they should" {
    var values: [400]i32 = undefined;
    for (&values, 0..) |*value, i| value.* = @as(i32, @intCast(i)) - 150;
    var columns = try Columns.init(testing.allocator, values.len);
    defer columns.deinit();
    var diagnostic = Diagnostic{};
    const column = Column{ .name = "n", .type = .i32, .row_count = values.len, .validity = null, .values = @ptrCast(&values), .values_count = values.len };
    try columns.add(column, &diagnostic);
    for ([_]i64{ 1, 62, 63, 64, 65, 127, 128, 191 }) |span| for ([_]i64{ -100, -1, 0, 3 }) |low| {
        var writer = Writer{ .alloc = testing.allocator, .columns = &.{column} };
        defer writer.deinit();
        try writer.leaf(.in_set, 0, &.{ @bitCast(low), @bitCast(low + span) });
        const bytes = try writer.finish();
        defer testing.allocator.free(bytes);
        const filter = try Filter.compile(testing.allocator, &columns, bytes, &diagnostic);
        defer filter.deinit();
        for (values, 0..) |value, row| try testing.expectEqual(value == low or value == low + span, filter.passes(@intCast(row)));
    };
}

test "restricted filters agree with both of what they are made of, whichever way they are asked" {
    const n = 3000;
    var prng = base.Prng.init(23);
    var values: [n]i32 = undefined;
    for (&values) |*value| value.* = @intCast(prng.below(100));
    var columns = try column_room.Columns.init(testing.allocator, n);
    defer columns.deinit();
    var diagnostic = Diagnostic{};
    const given = column_room.Column{ .name = "n", .type = .i32, .row_count = n, .validity = null, .values = @ptrCast(&values), .values_count = n };
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

const random_leaf = random_table.random_leaf;
const ColumnType = column_room.ColumnType;

test "damaged programs are refused or run, never worse" {
    var prng = base.Prng.init(99);
    var table: Table = undefined;
    try table.init(65, &prng);
    defer table.deinit();
    for (0..120) |_| {
        var writer = Writer{ .alloc = testing.allocator, .columns = table.list.items };
        defer writer.deinit();
        try random_tree(&writer, &prng, 3);
        const bytes = try writer.finish();
        defer testing.allocator.free(bytes);
        for (0..40) |_| {
            const damaged = try testing.allocator.dupe(u8, bytes[0..if (prng.below(4) == 0) @intCast(prng.below(bytes.len)) else bytes.len]);
            defer testing.allocator.free(damaged);
            for (0..@intCast(1 + prng.below(3))) |_| {
                if (damaged.len > 0) damaged[@intCast(prng.below(damaged.len))] = @truncate(prng.next());
            }
            var diagnostic = Diagnostic{};
            const filter = Filter.compile(testing.allocator, &table.columns, damaged, &diagnostic) catch {
                try testing.expect(diagnostic.message().len > 0);
                continue;
            };
            defer filter.deinit();
            try testing.expect(filter.count(null) <= 65);
        }
    }
}

fn expect_refused(expected: anyerror, columns: *Columns, bytes: []const u8, part: []const u8) !void {
    var diagnostic = Diagnostic{};
    try testing.expectError(expected, Filter.compile(testing.allocator, columns, bytes, &diagnostic));
    if (std.mem.indexOf(u8, diagnostic.message(), part) == null) {
        std.debug.print("\"{s}\" does not say \"{s}\"\n", .{ diagnostic.message(), part });
        return error.TestUnexpectedResult;
    }
}

test "each way a program can be wrong has its error" {
    var prng = base.Prng.init(5);
    var table: Table = undefined;
    try table.init(10, &prng);
    defer table.deinit();
    const columns = table.list.items;
    const i8_at = 2;
    const f64_at = 20;
    const list_at = 24;
    try testing.expectEqual(ColumnType.f64, columns[f64_at].type);
    try testing.expectEqual(ColumnType.list_code32, columns[list_at].type);
    const nan: u64 = @bitCast(std.math.nan(f64));
    const big: u64 = 1000;
    const Case = struct { opcode: Opcode, column: u16, values: []const u64, err: anyerror, part: []const u8 };
    for ([_]Case{
        .{ .opcode = .range, .column = i8_at, .values = &.{ 5, 4 }, .err = error.BadProgram, .part = "ascend" },
        .{ .opcode = .range, .column = i8_at, .values = &.{4}, .err = error.BadProgram, .part = "1 operands" },
        .{ .opcode = .in_set, .column = i8_at, .values = &.{ 1, 1 }, .err = error.BadProgram, .part = "ascend" },
        .{ .opcode = .in_set, .column = i8_at, .values = &.{big}, .err = error.BadProgram, .part = "fit column i8" },
        .{ .opcode = .in_set, .column = f64_at, .values = &.{nan}, .err = error.BadProgram, .part = "fit column f64" },
        .{ .opcode = .in_set, .column = list_at, .values = &.{1}, .err = error.WrongType, .part = "list_code32" },
        .{ .opcode = .contains_any, .column = i8_at, .values = &.{1}, .err = error.WrongType, .part = "i8" },
        .{ .opcode = .contains_any, .column = list_at, .values = &.{~@as(u64, 0)}, .err = error.BadProgram, .part = "fit" },
        .{ .opcode = .is_null, .column = i8_at, .values = &.{1}, .err = error.BadProgram, .part = "operands" },
        .{ .opcode = .is_null, .column = 1000, .values = &.{}, .err = error.BadProgram, .part = "column 1000" },
    }) |case| {
        var writer = Writer{ .alloc = testing.allocator, .columns = columns };
        defer writer.deinit();
        try writer.leaf(case.opcode, case.column, case.values);
        const bytes = try writer.finish();
        defer testing.allocator.free(bytes);
        try expect_refused(case.err, &table.columns, bytes, case.part);
    }

    var stranger = columns[0];
    stranger.name = "stranger";
    var other_type = columns[0];
    other_type.type = .i64;
    for ([_]struct { c: Column, e: anyerror, part: []const u8 }{
        .{ .c = stranger, .e = error.UnknownColumn, .part = "stranger" },
        .{ .c = other_type, .e = error.WrongType, .part = "is of type bool" },
    }) |case| {
        var writer = Writer{ .alloc = testing.allocator, .columns = &.{case.c} };
        defer writer.deinit();
        try writer.leaf(.is_null, 0, &.{});
        const bytes = try writer.finish();
        defer testing.allocator.free(bytes);
        try expect_refused(case.e, &table.columns, bytes, case.part);
    }
}

test "depth and size have limits" {
    var prng = base.Prng.init(6);
    var table: Table = undefined;
    try table.init(10, &prng);
    defer table.deinit();
    for ([_]usize{ program.depth_max - 1, program.depth_max }) |nots| {
        var writer = Writer{ .alloc = testing.allocator, .columns = table.list.items };
        defer writer.deinit();
        try writer.leaf(.is_null, 0, &.{});
        for (0..nots) |_| try writer.put(.not, 0, 0, &.{});
        const bytes = try writer.finish();
        defer testing.allocator.free(bytes);
        if (nots < program.depth_max) try check_program(&table, bytes) else try expect_refused(error.TooDeep, &table.columns, bytes, "64");
    }
    for ([_]u32{ program.instructions_max - 1, program.instructions_max }) |leaves| {
        var writer = Writer{ .alloc = testing.allocator, .columns = table.list.items };
        defer writer.deinit();
        for (0..leaves) |_| try random_leaf(&writer, &prng);
        try writer.put(.any, 0, leaves, &.{});
        const bytes = try writer.finish();
        defer testing.allocator.free(bytes);
        if (leaves < program.instructions_max) try check_program(&table, bytes) else try expect_refused(error.BadProgram, &table.columns, bytes, "4097 instructions");
    }
}

test "columns are checked before anything reads them" {
    const alloc = testing.allocator;
    var columns = try Columns.init(alloc, 3);
    defer columns.deinit();
    const bytes: [64]u8 = @splat(0);
    const good = Column{ .name = "good", .type = .i32, .row_count = 3, .validity = null, .values = &bytes, .values_count = 3 };
    var diagnostic = Diagnostic{};
    try columns.add(good, &diagnostic);
    const Case = struct { change: *const fn (*Column) void, part: []const u8 };
    const short: [4]i32 = .{ 0, 2, 1, 2 };
    const far: [4]i32 = .{ 0, 1, 2, 99 };
    const negative: [4]i32 = .{ -1, 1, 2, 3 };
    for ([_]Case{
        .{ .part = "already", .change = struct {
            fn f(c: *Column) void {
                c.name = "good";
            }
        }.f },
        .{ .part = "4 rows", .change = struct {
            fn f(c: *Column) void {
                c.row_count = 4;
            }
        }.f },
        .{ .part = "2 values", .change = struct {
            fn f(c: *Column) void {
                c.values_offset = 1;
            }
        }.f },
        .{ .part = "starts at", .change = struct {
            fn f(c: *Column) void {
                c.values_offset = 4;
            }
        }.f },
        .{ .part = "has no values", .change = struct {
            fn f(c: *Column) void {
                c.values = null;
            }
        }.f },
        .{ .part = "without offsets", .change = struct {
            fn f(c: *Column) void {
                c.type = .list_i64;
            }
        }.f },
    }) |case| {
        var column = good;
        column.name = "other";
        case.change(&column);
        diagnostic = .{};
        try testing.expectError(error.InvalidArgument, columns.add(column, &diagnostic));
        try testing.expect(std.mem.indexOf(u8, diagnostic.message(), case.part) != null);
    }
    for ([_]*const [4]i32{ &short, &far, &negative }) |offsets| {
        var column = good;
        column.name = "list";
        column.type = .list_code32;
        column.offsets = offsets;
        diagnostic = .{};
        try testing.expectError(error.InvalidArgument, columns.add(column, &diagnostic));
        try testing.expect(std.mem.indexOf(u8, diagnostic.message(), "offset") != null);
    }
    try testing.expectError(error.InvalidArgument, Columns.init(alloc, 1 << 33));
}
