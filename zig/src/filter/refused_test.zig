//! Every way in which a program or a column can be wrong.
const std = @import("std");
const testing = std.testing;
const base = @import("base");
const column_room = @import("column.zig");
const program = @import("program.zig");
const predicate = @import("predicate.zig");
const random_table = @import("random_table_test.zig");
const Table = random_table.Table;
const random_tree = random_table.random_tree;
const random_leaf = random_table.random_leaf;
const check_program = @import("random_table_test.zig").check_program;
const Column = column_room.Column;
const ColumnType = column_room.ColumnType;
const Columns = column_room.Columns;
const Diagnostic = @import("diagnostic.zig").Diagnostic;
const Filter = predicate.Filter;
const Opcode = program.Opcode;
const Writer = @import("random_table_test.zig").Writer;

test "damaged programs are refused or run, never worse" {
    var prng = base.Prng.init(99);
    var table: Table = undefined;
    try table.init(65, &prng);
    defer table.deinit();
    for (0..300) |_| {
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
