//! The definition of what passes: an interpreter of programs that keeps the third truth value.
const std = @import("std");
const testing = std.testing;
const program = @import("program.zig");
const predicate = @import("predicate.zig");
const random_table = @import("random_table_test.zig");
const Table = random_table.Table;
const Diagnostic = @import("diagnostic.zig").Diagnostic;
const Filter = predicate.Filter;

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

/// Every form in which a filter is asked says what the interpreter says.
pub fn check_program(table: *Table, bytes: []const u8) !void {
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
