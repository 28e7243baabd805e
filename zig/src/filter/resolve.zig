//! Which rows pass, all of them. Few are a list, many are bits. Each condition comes from its postings or from a look
//! at every row, whichever is less work; under `all` the rarest condition comes from its postings and only its rows are
//! asked for the rest, so that what takes time is the matches and not the rows.
const std = @import("std");
const assert = std.debug.assert;
const base = @import("base");
const column_room = @import("column.zig");
const estimate = @import("estimate.zig");
const posting_room = @import("posting.zig");
const tree = @import("leaf.zig");
const Found = @import("leaf.zig").Found;
const Leaf = @import("leaf.zig").Leaf;
const Node = tree.Node;

pub const Set = union(enum) {
    /// Ascending.
    list: []u32,
    bits: []u64,

    pub fn deinit(self: Set, alloc: std.mem.Allocator) void {
        switch (self) {
            .list => |rows| alloc.free(rows),
            .bits => |words| alloc.free(words),
        }
    }

    pub fn count(self: Set) u64 {
        return switch (self) {
            .list => |rows| rows.len,
            .bits => |words| estimate.count_words(words),
        };
    }
};

// Rough costs in nanoseconds: only their order matters.
const entry_ns = 1.5;
const posting_ns = 20;
const word_ns = 0.5;
const row_ns = 0.5; // times a leaf's cost, rows in a row
const asked_row_ns = 8; // times a leaf's cost, rows anywhere

/// A set is a list if it has at most one row in this many: 4 bytes a row against n / 8 bytes.
const list_share = 64;
/// Sorting a list of rows takes longer than setting bits, so there are fewer.
const sorted_list_share = 1024;

const Error = std.mem.Allocator.Error;

pub fn resolve(alloc: std.mem.Allocator, node: *const Node, n: u64) Error!Set {
    switch (node.*) {
        .constant => |value| {
            const words = try zeroes(alloc, n);
            if (value) fill(words, n);
            return .{ .bits = words };
        },
        .leaf => |leaf| return resolve_leaf(alloc, leaf, node, n),
        .all => |children| return resolve_all(alloc, children, n),
        .any => |children| return resolve_any(alloc, children, node, n),
    }
}

pub fn to_bits(alloc: std.mem.Allocator, rows: []const u32, n: u64) Error![]u64 {
    const words = try zeroes(alloc, n);
    for (rows) |row| words[row / 64] |= @as(u64, 1) << @intCast(row % 64);
    return words;
}

fn zeroes(alloc: std.mem.Allocator, n: u64) Error![]u64 {
    const words = try alloc.alloc(u64, base.BitSet.words_for(@intCast(n)));
    @memset(words, 0);
    return words;
}

fn fill(words: []u64, n: u64) void {
    @memset(words, ~@as(u64, 0));
    if (n % 64 != 0) words[words.len - 1] = column_room.low_bits(@intCast(n % 64));
}

fn resolve_leaf(alloc: std.mem.Allocator, leaf: *const Leaf, node: *const Node, n: u64) Error!Set {
    const ns = from_postings_ns(leaf, n);
    if (ns == null or ns.? > every_row_ns(node, n)) return .{ .bits = try evaluate_all(alloc, node, n) };
    const found = &leaf.found.?;
    if (!leaf.negated and found.kind != .nulls) {
        const entries = found.entries();
        const sorted = found.values() <= 1 and found.postings.form == .values;
        if (entries <= n / @as(u64, if (sorted) list_share else sorted_list_share)) {
            var list = estimate.List{ .rows = try alloc.alloc(u32, @intCast(entries)) };
            errdefer alloc.free(list.rows);
            found.each(&list);
            if (!sorted) list.len = ascending(list.rows[0..list.len]);
            if (found.kind == .all) list.len = keep_held(found, node, list.rows[0..list.len]);
            return .{ .list = try shrunk(alloc, list) };
        }
    }
    const words = try zeroes(alloc, n);
    errdefer alloc.free(words);
    if (found.kind == .all) {
        try intersect(alloc, words, found, n);
        if (leaf.negated) for (words, 0..) |*word, i| {
            const some = tree.Neighbors.of(i, @intCast(n));
            word.* = leaf.column.valid_word(some.first, some.count) & ~word.*;
        };
    } else add_leaf(words, leaf, n);
    return .{ .bits = words };
}

/// Of rows from the smallest of several postings those that stand in the others: by their bits where they are bits, else
/// by asking the row.
fn keep_held(found: *const Found, node: *const Node, rows: []u32) usize {
    var len = rows.len;
    var ask = false;
    for (found.spans[1..]) |span| {
        const one = found.postings.posting(span.from);
        if (!one.shape.is_bits) {
            ask = true;
            continue;
        }
        var kept: usize = 0;
        for (rows[0..len]) |row| {
            rows[kept] = row; // kept never overtakes what is still to be read
            kept += @intCast((one.words[row / 64] >> @intCast(row % 64)) & 1);
        }
        len = kept;
    }
    return if (ask) keep_passing(node, rows[0..len]) else len;
}

/// Rows that stand in every span, into zeroed words.
fn intersect(alloc: std.mem.Allocator, words: []u64, found: *const Found, n: u64) Error!void {
    for_each_posting(found, With{ .words = words });
    var spare: ?[]u64 = null;
    defer if (spare) |other| alloc.free(other);
    for (found.spans[1..]) |span| {
        const one = found.postings.posting(span.from);
        var bits = one.words;
        if (!one.shape.is_bits) {
            if (spare == null) spare = try alloc.alloc(u64, words.len);
            @memset(spare.?, 0);
            var it = one.iterator();
            while (it.next()) |row| spare.?[row / 64] |= @as(u64, 1) << @intCast(row % 64);
            bits = spare.?;
        }
        for (words, bits) |*word, other| word.* &= other;
    }
    assert(base.BitSet.words_for(@intCast(n)) == words.len);
}

/// Sets the rows of a leaf whose words hold none yet, or any where it is neither negated nor of nulls. Not of `all`.
fn add_leaf(words: []u64, leaf: *const Leaf, n: u64) void {
    const found = &leaf.found.?;
    assert(found.kind != .all);
    const rows: usize = @intCast(n);
    if (found.kind == .nulls or leaf.negated) {
        const want_valid = found.kind != .nulls or leaf.negated;
        for (words, 0..) |*word, i| {
            const some = tree.Neighbors.of(i, rows);
            const valid = leaf.column.valid_word(some.first, some.count);
            word.* = if (want_valid) valid else ~valid & column_room.low_bits(some.count);
        }
        if (found.kind != .nulls) for_each_posting(found, Without{ .words = words });
        return;
    }
    for_each_posting(found, With{ .words = words });
}

const With = struct {
    words: []u64,

    pub inline fn add(self: With, row: u32) void {
        self.words[row / 64] |= @as(u64, 1) << @intCast(row % 64);
    }

    fn all(self: With, bits: []const u64) void {
        for (self.words, bits) |*word, more| word.* |= more;
    }
};

const Without = struct {
    words: []u64,

    pub inline fn add(self: Without, row: u32) void {
        self.words[row / 64] &= ~(@as(u64, 1) << @intCast(row % 64));
    }

    fn all(self: Without, bits: []const u64) void {
        for (self.words, bits) |*word, less| word.* &= ~less;
    }
};

/// As Found.each, with postings that are bits taken whole.
fn for_each_posting(found: *const Found, to: anytype) void {
    const part = found.postings;
    for (found.drawable()) |span| {
        if (part.form == .order) {
            part.each(span, to);
            continue;
        }
        for (span.from..span.to) |value| {
            const one = part.posting(@intCast(value));
            if (one.shape.is_bits) {
                to.all(one.words);
            } else {
                var it = one.iterator();
                while (it.next()) |row| to.add(row);
            }
        }
    }
}

fn resolve_all(alloc: std.mem.Allocator, children: []const *Node, n: u64) Error!Set {
    var rarest: usize = 0;
    var fewest: u64 = std.math.maxInt(u64);
    var least_ns: f64 = std.math.inf(f64);
    for (children, 0..) |child, i| {
        const high = estimate.Bounds.of(child, n).high;
        const ns = cost_ns(child, n);
        if (high < fewest or (high == fewest and ns < least_ns)) {
            rarest = i;
            fewest = high;
            least_ns = ns;
        }
    }
    var set = try resolve(alloc, children[rarest], n);
    errdefer set.deinit(alloc);
    for (children, 0..) |child, i| {
        if (i == rarest) continue;
        switch (set) {
            .list => |rows| {
                const kept = keep_passing(child, rows);
                set = .{ .list = try shrunk(alloc, .{ .rows = rows, .len = kept }) };
            },
            .bits => |words| {
                const share = @min(1, 64 * @as(f64, @floatFromInt(fewest)) / @as(f64, @floatFromInt(@max(1, n))));
                if (every_row_ns(child, n) * share <= cost_ns(child, n)) {
                    keep_bits(child, words, n);
                    continue;
                }
                const other = try resolve(alloc, child, n);
                defer other.deinit(alloc);
                switch (other) {
                    .bits => |more| for (words, more) |*word, one| {
                        word.* &= one;
                    },
                    .list => |rows| {
                        const both = try alloc.alloc(u32, rows.len);
                        var kept: usize = 0;
                        for (rows) |row| {
                            both[kept] = row;
                            kept += @intCast((words[row / 64] >> @intCast(row % 64)) & 1);
                        }
                        alloc.free(words);
                        set = .{ .list = both };
                        set = .{ .list = try shrunk(alloc, .{ .rows = both, .len = kept }) };
                    },
                }
            },
        }
    }
    return set;
}

fn resolve_any(alloc: std.mem.Allocator, children: []const *Node, node: *const Node, n: u64) Error!Set {
    var total_ns: f64 = 0;
    for (children) |child| total_ns += cost_ns(child, n);
    if (total_ns >= every_row_ns(node, n)) return .{ .bits = try evaluate_all(alloc, node, n) };
    if (estimate.Bounds.of(node, n).high <= n / sorted_list_share) {
        var all: std.ArrayList(u32) = .empty;
        errdefer all.deinit(alloc);
        for (children) |child| {
            const set = try resolve(alloc, child, n);
            defer set.deinit(alloc);
            switch (set) {
                .list => |rows| try all.appendSlice(alloc, rows),
                .bits => |words| {
                    var it = base.BitSet.over(words, @intCast(n)).iterator();
                    while (it.next()) |row| try all.append(alloc, @intCast(row));
                },
            }
        }
        all.shrinkRetainingCapacity(ascending(all.items));
        return .{ .list = try all.toOwnedSlice(alloc) };
    }
    const words = try zeroes(alloc, n);
    errdefer alloc.free(words);
    for (children) |child| {
        if (is_plain(child) and from_postings_ns(child.leaf, n).? <= every_row_ns(child, n)) {
            add_leaf(words, child.leaf, n);
            continue;
        }
        const set = try resolve(alloc, child, n);
        defer set.deinit(alloc);
        switch (set) {
            .list => |rows| for (rows) |row| {
                words[row / 64] |= @as(u64, 1) << @intCast(row % 64);
            },
            .bits => |more| for (words, more) |*word, one| {
                word.* |= one;
            },
        }
    }
    return .{ .bits = words };
}

/// Its postings hold its rows and no others.
fn is_plain(node: *const Node) bool {
    if (node.* != .leaf or node.leaf.negated) return false;
    const found = &(node.leaf.found orelse return false);
    return found.kind == .union_disjoint or found.kind == .any;
}

fn evaluate_all(alloc: std.mem.Allocator, node: *const Node, n: u64) Error![]u64 {
    const words = try alloc.alloc(u64, base.BitSet.words_for(@intCast(n)));
    for (words, 0..) |*word, i| {
        const some = tree.Neighbors.of(i, @intCast(n));
        word.* = tree.evaluate(node, some, column_room.low_bits(some.count));
    }
    return words;
}

fn keep_bits(node: *const Node, words: []u64, n: u64) void {
    for (words, 0..) |*word, i| {
        if (word.* != 0) word.* = tree.evaluate(node, tree.Neighbors.of(i, @intCast(n)), word.*);
    }
}

/// Moves those that pass to the front, in their order, and says how many they are.
fn keep_passing(node: *const Node, rows: []u32) usize {
    var kept: usize = 0;
    var first: usize = 0;
    while (first < rows.len) : (first += 64) {
        const some = rows[first..@min(first + 64, rows.len)];
        var passed = tree.evaluate(node, tree.Gathered{ .rows = some }, column_room.low_bits(some.len));
        while (passed != 0) : (passed &= passed - 1) {
            rows[kept] = some[@ctz(passed)]; // kept never overtakes what is still to be read
            kept += 1;
        }
    }
    return kept;
}

/// Sorts, drops what stands twice, and says how many are left.
fn ascending(rows: []u32) usize {
    std.mem.sortUnstable(u32, rows, {}, std.sort.asc(u32));
    var kept: usize = 0;
    for (rows) |row| {
        if (kept > 0 and rows[kept - 1] == row) continue;
        rows[kept] = row;
        kept += 1;
    }
    return kept;
}

fn shrunk(alloc: std.mem.Allocator, list: estimate.List) Error![]u32 {
    if (list.len == list.rows.len) return list.rows;
    return alloc.realloc(list.rows, list.len);
}

/// The rough expected cost of `resolve`.
pub fn cost_ns(node: *const Node, n: u64) f64 {
    const every = every_row_ns(node, n);
    switch (node.*) {
        .constant => return 0,
        .leaf => |leaf| return @min(every, from_postings_ns(leaf, n) orelse every),
        .all => |children| {
            var least: f64 = std.math.inf(f64);
            var fewest: u64 = n;
            for (children) |child| {
                least = @min(least, cost_ns(child, n));
                fewest = @min(fewest, estimate.Bounds.of(child, n).high);
            }
            const rows: f64 = @floatFromInt(fewest);
            return @min(every, least + rows * asked_row_ns * @as(f64, @floatFromInt(children.len)));
        },
        .any => |children| {
            var total: f64 = 0;
            for (children) |child| total += cost_ns(child, n);
            return @min(every, total);
        },
    }
}

fn every_row_ns(node: *const Node, n: u64) f64 {
    const rows: f64 = @floatFromInt(n);
    switch (node.*) {
        .constant => return 0,
        .leaf => |leaf| return rows * row_ns * leaf.cost,
        .all, .any => |children| {
            var total: f64 = 0;
            for (children) |child| total += every_row_ns(child, n);
            return total;
        },
    }
}

fn from_postings_ns(leaf: *const Leaf, n: u64) ?f64 {
    const found = &(leaf.found orelse return null);
    const words: f64 = @floatFromInt(base.BitSet.words_for(@intCast(n)));
    var total = words * word_ns;
    if (found.kind == .nulls) return total;
    const entries: f64 = @floatFromInt(found.entries());
    const values: f64 = @floatFromInt(found.values());
    // Postings that are bits cost their words; at most a sixteenth of all rows stand behind any other.
    const by_row = entries * entry_ns;
    const by_bits = values * words * word_ns;
    const part = found.postings;
    total += values * posting_ns + if (part.form == .values and values <= 64) @min(by_row, by_bits) else by_row;
    if (found.kind == .all) for (found.spans[1..]) |span| {
        const held: f64 = @floatFromInt(part.count(span));
        const is_list = !leaf.negated and found.entries() <= n / list_share;
        const is_bits = held * @as(f64, posting_room.bits_share) >= @as(f64, @floatFromInt(n));
        total += if (is_list)
            (if (is_bits) entries * entry_ns else entries * asked_row_ns * leaf.cost)
        else
            (if (is_bits) 0 else held * entry_ns + words * word_ns) + words * word_ns;
    };
    return total;
}
