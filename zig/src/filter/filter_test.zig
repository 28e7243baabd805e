//! Random programs over random columns against an interpreter that keeps the third truth value; and every way in which
//! a program or a column can be wrong.
const std = @import("std");
const testing = std.testing;
const base = @import("base");
const column_room = @import("column.zig");
const program = @import("program.zig");
const predicate = @import("predicate.zig");
const Column = column_room.Column;
const ColumnType = column_room.ColumnType;
const Columns = column_room.Columns;
const Diagnostic = @import("diagnostic.zig").Diagnostic;
const Filter = predicate.Filter;
const Opcode = program.Opcode;
const Writer = @import("writer_test.zig").Writer;

const all_types = std.enums.values(ColumnType);

/// A column of every type, with and without nulls, at odd offsets; small domains, so that values meet operands.
const Table = struct {
    arena: std.heap.ArenaAllocator,
    columns: Columns,
    list: std.ArrayList(Column) = .empty,
    row_count: usize,

    fn init(self: *Table, row_count: usize, prng: *base.Prng) !void {
        self.* = .{ .arena = .init(testing.allocator), .columns = undefined, .row_count = row_count };
        errdefer self.arena.deinit();
        const arena = self.arena.allocator();
        self.columns = try Columns.init(arena, row_count);
        for (all_types) |t| for ([_]bool{ false, true }) |nullable| {
            const name = try std.fmt.allocPrint(arena, "{t}{s}", .{ t, if (nullable) "?" else "" });
            const column = try random_column(arena, name, t, nullable, row_count, prng);
            try self.list.append(arena, column);
            var diagnostic = Diagnostic{};
            try self.columns.add(column, &diagnostic);
        };
    }

    fn deinit(self: *Table) void {
        self.arena.deinit();
    }
};

/// Writes the postings of a table's columns and maps them.
fn with_postings(table: *Table, dir: *testing.TmpDir) !void {
    var buffer: [std.fs.max_path_bytes]u8 = undefined;
    const folder = try dir.dir.realpath(".", &buffer);
    const path = try std.fs.path.join(testing.allocator, &.{ folder, "columns.postings" });
    defer testing.allocator.free(path);
    try @import("postings_writer.zig").write(testing.allocator, path, &table.columns, 1);
    var diagnostic = Diagnostic{};
    try table.columns.load_postings(path, 1, &diagnostic);
}

fn random_value(comptime T: type, prng: *base.Prng) T {
    const extreme = prng.below(16) == 0;
    if (T == f32 or T == f64) {
        if (extreme) return ([_]T{ std.math.nan(T), std.math.inf(T), -std.math.inf(T), -0.0 })[@intCast(prng.below(4))];
        return @as(T, @floatFromInt(prng.below(20))) - 10;
    }
    if (extreme) return if (prng.boolean()) std.math.maxInt(T) else std.math.minInt(T);
    const small: i64 = @intCast(prng.below(20));
    return if (@typeInfo(T).int.signedness == .signed) @intCast(small - 10) else @intCast(small);
}

fn random_column(arena: std.mem.Allocator, name: []const u8, t: ColumnType, nullable: bool, row_count: usize, prng: *base.Prng) !Column {
    const skipped: usize = @intCast(prng.below(5));
    var column = Column{
        .name = name,
        .type = t,
        .row_count = row_count,
        .validity = null,
        .values = null,
        .values_offset = skipped,
        .values_count = 0,
    };
    if (nullable) {
        column.validity_offset = prng.below(11);
        const validity = try arena.alloc(u8, (row_count + @as(usize, @intCast(column.validity_offset)) + 7) / 8);
        for (validity) |*byte| byte.* = @truncate(prng.next() | prng.next());
        column.validity = validity.ptr;
    }
    switch (t) {
        .bool => {
            column.values_count = row_count + skipped;
            const bits = try arena.alloc(u8, (row_count + skipped + 7) / 8);
            for (bits) |*byte| byte.* = @truncate(prng.next());
            column.values = bits.ptr;
        },
        inline else => |scalar| {
            const T = program.ValueType(scalar);
            var element_count = row_count;
            if (comptime scalar.is_list()) {
                const offsets = try arena.alloc(i32, row_count + 1);
                var at: usize = 0;
                for (offsets) |*offset| {
                    offset.* = @intCast(at);
                    at += @intCast(prng.below(6));
                }
                element_count = @intCast(offsets[row_count]);
                column.offsets = offsets.ptr;
            }
            column.values_count = element_count + skipped;
            const bytes = try arena.alloc(u8, @sizeOf(T) * (element_count + skipped) + 1);
            const values: [*]align(1) T = @ptrCast(bytes.ptr + 1);
            for (0..element_count + skipped) |i| values[i] = random_value(T, prng);
            column.values = bytes.ptr + 1;
        },
    }
    return column;
}

fn operand_word(comptime T: type, value: T) u64 {
    return switch (T) {
        bool => @intFromBool(value),
        f32, f64 => @bitCast(@as(f64, value)),
        else => if (@typeInfo(T).int.signedness == .signed) @bitCast(@as(i64, value)) else value,
    };
}

/// Ascending, distinct, without NaN; codes are never negative.
fn random_operands(comptime t: ColumnType, prng: *base.Prng, buffer: []u64, count: usize) []u64 {
    const T = program.ValueType(t);
    var values: [64]T = undefined;
    for (values[0..count]) |*value| {
        value.* = if (T == bool) prng.boolean() else random_value(T, prng);
        if (T == f32 or T == f64) {
            if (value.* != value.*) value.* = 3.5;
        }
        if (t == .code32 or t == .list_code32) value.* = @intCast(@abs(@max(value.*, -std.math.maxInt(i32))));
    }
    const less = struct {
        fn less(_: void, a: T, b: T) bool {
            return if (T == bool) !a and b else a < b;
        }
    }.less;
    std.mem.sort(T, values[0..count], {}, less);
    var kept: usize = 0;
    for (values[0..count], 0..) |value, i| {
        if (i > 0 and !less({}, values[i - 1], value)) continue;
        buffer[kept] = operand_word(T, value);
        kept += 1;
    }
    return buffer[0..kept];
}

fn random_leaf(writer: *Writer, prng: *base.Prng) !void {
    const index: u16 = @intCast(prng.below(writer.columns.len));
    var buffer: [64]u64 = undefined;
    switch (writer.columns[index].type) {
        inline else => |t| {
            if (prng.below(8) == 0) return writer.leaf(.is_null, index, &.{});
            const count: usize = @intCast(switch (prng.below(3)) {
                0 => 1,
                1 => prng.below(4),
                else => prng.below(40),
            });
            const values = random_operands(t, prng, &buffer, count);
            if (t.is_list()) return writer.leaf(if (prng.boolean()) .contains_any else .contains_all, index, values);
            if (values.len > 0 and prng.boolean()) {
                const range = [2]u64{ values[0], values[values.len - 1] };
                return writer.leaf(.range, index, &range);
            }
            return writer.leaf(.in_set, index, values);
        },
    }
}

fn random_tree(writer: *Writer, prng: *base.Prng, depth: usize) !void {
    const kind = if (depth == 0) 9 else prng.below(10);
    switch (kind) {
        0, 1, 2, 3 => {
            const count: u32 = @intCast(1 + prng.below(4));
            for (0..count) |_| try random_tree(writer, prng, depth - 1);
            try writer.put(if (kind < 2) .all else .any, 0, count, &.{});
        },
        4, 5 => {
            try random_tree(writer, prng, depth - 1);
            try writer.put(.not, 0, 0, &.{});
        },
        6 => if (prng.below(4) == 0)
            try writer.put(if (prng.boolean()) .always else .never, 0, 0, &.{})
        else
            try random_leaf(writer, prng),
        else => try random_leaf(writer, prng),
    }
}

/// Truth with its third value, straight from the program's tree.
fn interpret(nodes: []const program.Node, at: u32, row: usize) ?bool {
    return switch (nodes[at]) {
        .constant => |value| value,
        .not => |child| if (interpret(nodes, child, row)) |value| !value else null,
        .all => |children| blk: {
            var truth: ?bool = true;
            for (children) |child| {
                const one = interpret(nodes, child, row);
                if (one == false) break :blk false;
                if (one == null) truth = null;
            }
            break :blk truth;
        },
        .any => |children| blk: {
            var truth: ?bool = false;
            for (children) |child| {
                const one = interpret(nodes, child, row);
                if (one == true) break :blk true;
                if (one == null) truth = null;
            }
            break :blk truth;
        },
        .leaf => |*leaf| interpret_leaf(leaf, row),
    };
}

fn interpret_leaf(leaf: *const program.Leaf, row: usize) ?bool {
    const column = leaf.column;
    if (leaf.opcode == .is_null) return !column.is_valid(row);
    if (!column.is_valid(row)) return null;
    switch (column.type) {
        inline else => |t| {
            const T = program.ValueType(t);
            if (comptime t.is_list()) {
                const offsets = column.offsets.?;
                const list = column.elements(T)[@intCast(offsets[row])..@intCast(offsets[row + 1])];
                for (0..leaf.operands.len()) |i| {
                    const wanted = leaf.operands.get(T, i).?;
                    const found = for (list) |element| {
                        if (element == wanted) break true;
                    } else false;
                    if (found != (leaf.opcode == .contains_all)) return found;
                }
                return leaf.opcode == .contains_all;
            }
            const value: if (T == bool) u64 else T = if (T == bool) @intFromBool(column.bool_at(row)) else column.elements(T)[row];
            const operand = struct {
                fn get(operands: program.Operands, i: usize) @TypeOf(value) {
                    return operands.get(@TypeOf(value), i).?;
                }
            }.get;
            if (leaf.opcode == .range) return value >= operand(leaf.operands, 0) and value <= operand(leaf.operands, 1);
            for (0..leaf.operands.len()) |i| if (value == operand(leaf.operands, i)) return true;
            return false;
        },
    }
}

fn check_program(table: *Table, bytes: []const u8) !void {
    var arena = std.heap.ArenaAllocator.init(testing.allocator);
    defer arena.deinit();
    var diagnostic = Diagnostic{};
    const tree = try program.parse(arena.allocator(), &table.columns, bytes, &diagnostic);
    const filter = try Filter.compile(testing.allocator, &table.columns, bytes, &diagnostic);
    defer filter.deinit();

    const n = table.row_count;
    const vertices = try arena.allocator().alloc(u32, n);
    const many = try arena.allocator().alloc(bool, n);
    const bits = try arena.allocator().alloc(u8, (n + 7) / 8);
    for (vertices, 0..) |*vertex, i| vertex.* = @intCast((i * 7919) % n); // a permutation: 7919 is prime and above n
    for ([_]bool{ false, true }) |resolved| {
        if (resolved) {
            var it = try filter.matches();
            for (0..n) |row| if (filter.passes(@intCast(row))) try testing.expectEqual(@as(u32, @intCast(row)), it.next().?);
            try testing.expectEqual(null, it.next());
            _ = try filter.resolve();
            try testing.expect(filter.is_resolved() and filter.memory_bytes() >= n / 8);
        }
        const count = filter.count(bits);
        filter.passes_many(vertices, many);
        var expected_count: u64 = 0;
        for (0..n) |row| {
            const expected = interpret(tree.nodes, @intCast(tree.nodes.len - 1), row) == true;
            expected_count += @intFromBool(expected);
            try testing.expectEqual(expected, filter.passes(@intCast(row)));
            try testing.expectEqual(expected, (bits[row / 8] >> @intCast(row % 8)) & 1 == 1);
        }
        for (vertices, many) |vertex, one| try testing.expectEqual(filter.passes(vertex), one);
        try testing.expectEqual(expected_count, count);
        try testing.expectEqual(expected_count, filter.count(null));
        const expected_share = @as(f64, @floatFromInt(expected_count)) / @as(f64, @floatFromInt(n));
        if (filter.is_exact()) try testing.expectApproxEqAbs(expected_share, filter.estimate(), 1e-9);
        if (n <= 64) try testing.expect(filter.is_exact());
        if (expected_count > 0) try testing.expect(filter.estimate() > 0);
        if (n % 8 != 0) try testing.expectEqual(0, bits[bits.len - 1] >> @intCast(n % 8));
        if (n <= 64) try testing.expectApproxEqAbs(@as(f64, @floatFromInt(expected_count)) / @as(f64, @floatFromInt(n)), filter.estimate(), 1e-9);
    }
}

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
        for (0..if (n < 1000) 150 else 30) |round| {
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
