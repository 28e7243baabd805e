//! The number of rows that pass a filter, before it is evaluated: exactly where postings count them; where conditions meet, by
//! a seeded sample drawn from the postings of the rarest, so that a few rows of a million are estimated as well as
//! half of them; else by a seeded sample of all rows, within the bounds that counts set.
const std = @import("std");
const base = @import("base");
const column_room = @import("column.zig");
const tree = @import("leaf.zig");
const Found = @import("leaf.zig").Found;
const Leaf = @import("leaf.zig").Leaf;
const Node = tree.Node;

/// Rows looked at when a filter is compiled: enough to tell 1 % from 2 %.
const sample_rows_max = 1024;
/// Rows drawn from a posting; those of shorter ones are all looked at, and the count is exact.
const drawn_max = 256;
const draws_max = 4;
const enough_passing = 64;
const sample_words_max = sample_rows_max / 64;
/// Filters with very many tests look at fewer, so that compiling stays in milliseconds.
const sample_checks_max = 256 * 1024;

pub const Estimate = struct { count: f64, is_exact: bool };

pub const Bits = [sample_words_max]u64;

/// Rows spread over all vertices, one from each of equal runs; where in its run is pseudo-random, so that nothing
/// periodic in the placement is met in step.
pub const Sample = struct {
    rows: [sample_rows_max]u32,
    len: usize,
    row_count: u64,

    pub fn init(row_count: u64, leaves: usize) Sample {
        const affordable = @max(64, @min(sample_rows_max, sample_checks_max / @max(1, leaves)));
        var self = Sample{ .rows = undefined, .len = @intCast(@min(row_count, affordable)), .row_count = row_count };
        var prng = base.Prng.init(0x7665_6c6f);
        for (self.rows[0..self.len], 0..) |*row, i| {
            const first = i * row_count / self.len;
            const end = (i + 1) * row_count / self.len;
            row.* = @intCast(first + prng.below(end - first));
        }
        return self;
    }

    /// Rows that pass, never none and never all unless every row was looked at.
    fn scaled(self: *const Sample, passed: *const Bits) Estimate {
        if (self.len == 0) return .{ .count = 0, .is_exact = true };
        const len: f64 = @floatFromInt(self.len);
        const found: f64 = @floatFromInt(count_words(passed));
        if (self.len == self.row_count) return .{ .count = found, .is_exact = true };
        const share = std.math.clamp(found, 0.5, len - 0.5) / len;
        return .{ .count = share * @as(f64, @floatFromInt(self.row_count)), .is_exact = false };
    }
};

/// `passed` is what the sample said of the root.
pub fn estimate(root: *const Node, sample: *const Sample, passed: *const Bits) Estimate {
    const n: f64 = @floatFromInt(sample.row_count);
    const of_sample = sample.scaled(passed);
    switch (root.*) {
        .constant => |value| return .{ .count = if (value) n else 0, .is_exact = true },
        else => if (of_sample.is_exact) return of_sample,
    }
    const bounds = Bounds.of(root, sample.row_count);
    if (bounds.low == bounds.high) return .{ .count = @floatFromInt(bounds.low), .is_exact = true };
    const better: ?Estimate = switch (root.*) {
        .constant => unreachable,
        .leaf => |leaf| of_leaf(leaf, root),
        .all => |children| of_all(children, root, sample.row_count),
        .any => |children| of_any(children, root),
    };
    if (better) |found| return found;
    const low: f64 = @floatFromInt(bounds.low);
    const high: f64 = @floatFromInt(bounds.high);
    return .{ .count = std.math.clamp(of_sample.count, low, high), .is_exact = false };
}

/// Bounds from counts alone: least and most rows that can pass.
pub const Bounds = struct {
    low: u64,
    high: u64,

    pub fn of(node: *const Node, n: u64) Bounds {
        switch (node.*) {
            .constant => |value| return .{ .low = if (value) n else 0, .high = if (value) n else 0 },
            .leaf => |leaf| return of_found(leaf, n),
            .all => |children| {
                var self = Bounds{ .low = n, .high = n };
                for (children) |child| {
                    const one = of(child, n);
                    self.high = @min(self.high, one.high);
                    self.low = (self.low + one.low) -| n;
                }
                return self;
            },
            .any => |children| {
                var self = Bounds{ .low = 0, .high = 0 };
                const apart = children.len == 2 and is_null_beside(children[0], children[1]);
                for (children) |child| {
                    const one = of(child, n);
                    self.high = @min(n, self.high + one.high);
                    self.low = if (apart) self.low + one.low else @max(self.low, one.low);
                }
                return self;
            },
        }
    }

    fn of_found(leaf: *const Leaf, n: u64) Bounds {
        const found = &(leaf.found orelse return .{ .low = 0, .high = n });
        const valid = if (found.kind == .nulls) n else n - found.postings.nulls;
        var low = if (found.is_exact()) found.matched_max else 0;
        if (found.kind == .any) for (found.spans) |span| {
            low = @max(low, found.postings.count(span));
        };
        if (leaf.negated) return .{ .low = valid -| found.matched_max, .high = valid -| low };
        return .{ .low = low, .high = found.matched_max };
    }
};

/// Whether one is the test for null of the column that the other is about: no row passes both.
fn is_null_beside(a: *const Node, b: *const Node) bool {
    if (a.* != .leaf or b.* != .leaf or !std.mem.eql(u8, a.leaf.column.name, b.leaf.column.name)) return false;
    return (is_null_test(a.leaf) and !is_about_nulls(b.leaf)) or (is_null_test(b.leaf) and !is_about_nulls(a.leaf));
}

fn is_about_nulls(leaf: *const Leaf) bool {
    const found = &(leaf.found orelse return true);
    return found.kind == .nulls;
}

fn is_null_test(leaf: *const Leaf) bool {
    const found = &(leaf.found orelse return false);
    return found.kind == .nulls and !leaf.negated;
}

/// Lists that hold several values, or one of several.
fn of_leaf(leaf: *const Leaf, root: *const Node) ?Estimate {
    const found = &(leaf.found orelse return null);
    if (found.kind != .all or leaf.negated) return null;
    return drawn(found, root);
}

/// Drawn from the rarest condition; the whole tree is asked of each row.
fn of_all(children: []const *Node, root: *const Node, n: u64) ?Estimate {
    var rarest: ?*const Found = null;
    for (children) |child| {
        const found = plain(child) orelse continue;
        if (rarest == null or found.matched_max < rarest.?.matched_max) rarest = found;
    }
    const found = rarest orelse return null;
    // A quarter of all rows is met often enough by the sample of all of them.
    if (found.matched_max > n / 4) return null;
    return drawn(found, root);
}

fn drawn(found: *const Found, root: *const Node) Estimate {
    const entries = found.entries();
    var rows: [drawn_max]u32 = undefined;
    if (entries <= drawn_max) {
        var list = List{ .rows = &rows };
        found.each(&list);
        const passed = passing(root, rows[0..list.len]);
        return .{ .count = @floatFromInt(passed), .is_exact = true };
    }
    // One row from each of equal runs of entries; again and again, until enough pass for a tenth's error or so.
    var prng = base.Prng.init(0x7665_6c70);
    var asked: usize = 0;
    var passed: usize = 0;
    while (asked < drawn_max * draws_max and passed < enough_passing) : (asked += drawn_max) {
        for (&rows, 0..) |*row, i| {
            const first = i * entries / drawn_max;
            const end = (i + 1) * entries / drawn_max;
            row.* = found.draw(first + prng.below(end - first));
        }
        passed += passing(root, &rows);
    }
    const all: f64 = @floatFromInt(asked);
    const share = std.math.clamp(@as(f64, @floatFromInt(passed)), 0.5, all - 0.5) / all;
    return .{ .count = share * @as(f64, @floatFromInt(entries)), .is_exact = false };
}

/// Of each condition the rows that pass none before it.
fn of_any(children: []const *Node, root: *const Node) ?Estimate {
    _ = root;
    var entries: u64 = 0;
    for (children) |child| {
        const found = plain(child) orelse return null;
        if (!found.is_exact()) return null;
        entries += found.matched_max;
    }
    var total: f64 = 0;
    var exact = true;
    var prng = base.Prng.init(0x7665_6c71);
    for (children, 0..) |child, i| {
        const found = plain(child).?;
        const here = found.matched_max;
        if (here == 0) continue;
        const before = Node{ .any = @constCast(children[0..i]) };
        var rows: [drawn_max]u32 = undefined;
        const wanted: usize = @intCast(@min(here, if (entries <= drawn_max) drawn_max else @max(16, drawn_max * here / entries)));
        if (wanted == here) {
            var list = List{ .rows = &rows };
            found.each(&list);
        } else for (rows[0..wanted], 0..) |*row, k| {
            const first = k * here / wanted;
            const end = (k + 1) * here / wanted;
            row.* = found.draw(first + prng.below(end - first));
        }
        exact = exact and (wanted == here or i == 0);
        const fresh: f64 = @floatFromInt(wanted - passing(&before, rows[0..wanted]));
        total += @as(f64, @floatFromInt(here)) * fresh / @as(f64, @floatFromInt(wanted));
    }
    return .{ .count = total, .is_exact = exact };
}

/// The postings of a plain condition, from which its rows can be drawn without drawing one twice.
fn plain(node: *const Node) ?*const Found {
    if (node.* != .leaf or node.leaf.negated) return null;
    const found = &(node.leaf.found orelse return null);
    return if (found.kind == .nulls or found.kind == .any) null else found;
}

fn passing(node: *const Node, rows: []const u32) usize {
    var passed: usize = 0;
    var first: usize = 0;
    while (first < rows.len) : (first += 64) {
        const some = rows[first..@min(first + 64, rows.len)];
        passed += @popCount(tree.evaluate(node, tree.Gathered{ .rows = some }, column_room.low_bits(some.len)));
    }
    return passed;
}

/// Takes rows as they come.
pub const List = struct {
    rows: []u32,
    len: usize = 0,

    pub inline fn add(self: *List, row: u32) void {
        self.rows[self.len] = row;
        self.len += 1;
    }
};

pub fn count_words(words: []const u64) u64 {
    var total: u64 = 0;
    for (words) |word| total += @popCount(word);
    return total;
}

const Ordered = struct { passed: Bits, cost: f32 };

/// Sorts the children of every node so that what decides most for the least comes first, by what the sample says.
pub fn order(arena: std.mem.Allocator, node: *Node, sample: *const Sample) error{OutOfMemory}!Ordered {
    switch (node.*) {
        .constant => |value| {
            var passed: Bits = @splat(0);
            if (value) for (0..sample.len) |i| {
                passed[i / 64] |= @as(u64, 1) << @intCast(i % 64);
            };
            return .{ .passed = passed, .cost = 0 };
        },
        .leaf => |leaf| {
            var passed: Bits = @splat(0);
            for (0..(sample.len + 63) / 64) |i| {
                const some = sample.rows[64 * i .. @min(64 * i + 64, sample.len)];
                passed[i] = leaf.gather(leaf, some, column_room.low_bits(some.len));
            }
            return .{ .passed = passed, .cost = leaf.cost };
        },
        .all, .any => |children| return order_children(arena, children, node.* == .all, sample),
    }
}

fn order_children(arena: std.mem.Allocator, children: []*Node, is_all: bool, sample: *const Sample) error{OutOfMemory}!Ordered {
    var total = Ordered{ .passed = @splat(if (is_all) ~@as(u64, 0) else 0), .cost = 0 };
    // Insertion sort by cost a decision; stable, and its few children (4096 at the very most) need no more.
    const ranks = try arena.alloc(f32, children.len);
    const len: f32 = @floatFromInt(@max(1, sample.len));
    for (0..children.len) |i| {
        const child = children[i];
        const one = try order(arena, child, sample);
        for (&total.passed, one.passed) |*sum, bits| sum.* = if (is_all) sum.* & bits else sum.* | bits;
        total.cost += one.cost;
        const share = @as(f32, @floatFromInt(count_words(&one.passed))) / len;
        const decides = if (is_all) 1 - share else share;
        const rank = one.cost / @max(decides, 1e-3);
        var at = i;
        while (at > 0 and ranks[at - 1] > rank) : (at -= 1) {
            ranks[at] = ranks[at - 1];
            children[at] = children[at - 1];
        }
        ranks[at] = rank;
        children[at] = child;
    }
    return total;
}
