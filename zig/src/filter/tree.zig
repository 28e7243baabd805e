//! The tree of a filter with `not` only at its leaves: De Morgan's laws hold in three-valued logic. Then `all` and `any`
//! are monotone and a row is true under them exactly when enough children are true, so that from here on "false or
//! null" is one value and two are enough.
const std = @import("std");
const column_room = @import("column.zig");
const program = @import("program.zig");
const Columns = column_room.Columns;
const Diagnostic = @import("diagnostic.zig").Diagnostic;
const Leaf = @import("leaf.zig").Leaf;
const PartError = @import("postings.zig").PartError;

pub const Node = union(enum) {
    constant: bool,
    leaf: *const Leaf,
    all: []*Node,
    any: []*Node,
};

/// The two kinds of 64 rows.
pub const Neighbors = struct {
    first: usize,
    count: usize,

    pub inline fn check(self: Neighbors, leaf: *const Leaf, alive: u64) u64 {
        return leaf.word(leaf, self.first, self.count, alive);
    }

    /// The word of rows from 64 · i.
    pub fn of(i: usize, row_count: usize) Neighbors {
        return .{ .first = 64 * i, .count = @min(64, row_count - 64 * i) };
    }
};

pub const Gathered = struct {
    rows: []const u32,

    pub inline fn check(self: Gathered, leaf: *const Leaf, alive: u64) u64 {
        return leaf.gather(leaf, self.rows, alive);
    }
};

/// Those of `alive` that pass. The depth is bounded by program.depth_max.
pub fn evaluate(node: *const Node, rows: anytype, alive: u64) u64 {
    switch (node.*) {
        .constant => |value| return if (value) alive else 0,
        .leaf => |leaf| return rows.check(leaf, alive),
        .all => |children| {
            var passed = alive;
            for (children) |child| {
                if (passed == 0) break;
                passed = evaluate(child, rows, passed);
            }
            return passed;
        },
        .any => |children| {
            var open = alive;
            for (children) |child| {
                if (open == 0) break;
                open &= ~evaluate(child, rows, open);
            }
            return alive & ~open;
        },
    }
}

/// Moves `not` down to the leaves and folds constants.
pub fn build(
    arena: std.mem.Allocator,
    columns: *Columns,
    nodes: []const program.Node,
    at: u32,
    negated: bool,
    leaves: *usize,
    diagnostic: *Diagnostic,
) PartError!*Node {
    const node = try arena.create(Node);
    switch (nodes[at]) {
        .not => |child| return build(arena, columns, nodes, child, !negated, leaves, diagnostic),
        .constant => |value| node.* = .{ .constant = value != negated },
        .leaf => |parsed| {
            const leaf = try arena.create(Leaf);
            leaf.* = try Leaf.init(arena, columns, parsed, negated, diagnostic);
            leaves.* += 1;
            node.* = .{ .leaf = leaf };
        },
        inline .all, .any => |indices, tag| {
            const children = try arena.alloc(*Node, indices.len);
            for (children, indices) |*child, index| child.* = try build(arena, columns, nodes, index, negated, leaves, diagnostic);
            node.* = join((tag == .all) != negated, children);
        },
    }
    return node;
}

fn join(is_all: bool, children: []*Node) Node {
    var kept: usize = 0;
    for (children) |child| {
        if (child.* == .constant) {
            if (child.constant != is_all) return .{ .constant = !is_all };
            continue;
        }
        children[kept] = child;
        kept += 1;
    }
    if (kept == 0) return .{ .constant = is_all };
    if (kept == 1) return children[0].*;
    return if (is_all) .{ .all = children[0..kept] } else .{ .any = children[0..kept] };
}
