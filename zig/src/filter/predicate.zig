//! A filter ready to run. Truth has three values, as in SQL and Arrow (Kleene): a comparison with null is null, `not`
//! null is null, and only what is true passes.
//!
//! A program is first rewritten so that `not` stands only at leaves (De Morgan's laws hold in three-valued logic). Then
//! `all` and `any` are monotone and a row is true under them exactly when enough children are true, so that from here
//! on "false or null" is one value and two are enough.
//!
//! Two forms come out of the tree: steps with two exits each, for one vertex at a time with as few tests as can be;
//! and the tree itself, for 64 rows or vertices at a time.
const std = @import("std");
const assert = std.debug.assert;
const base = @import("base");
const column_room = @import("column.zig");
const program = @import("program.zig");
const Columns = column_room.Columns;
const Leaf = @import("leaf.zig").Leaf;
const Diagnostic = @import("diagnostic.zig").Diagnostic;

pub const CompileError = program.ParseError;

/// Rows looked at when a filter is compiled: enough to tell 1 % from 2 %.
pub const sample_rows_max = 1024;
const sample_words_max = sample_rows_max / 64;
/// Filters with very many tests look at fewer, so that compiling stays in milliseconds.
const sample_checks_max = 256 * 1024;

const Node = union(enum) {
    constant: bool,
    leaf: *const Leaf,
    all: []*Node,
    any: []*Node,
};

/// Where a step leads: to another step, or to an end.
const Exit = u32;
const exit_pass: Exit = std.math.maxInt(Exit);
const exit_fail: Exit = exit_pass - 1;

const Step = struct { leaf: *const Leaf, on_true: Exit, on_false: Exit };

pub const Filter = struct {
    alloc: std.mem.Allocator,
    arena: std.heap.ArenaAllocator,
    row_count: u64,
    root: *const Node,
    steps: []const Step,
    entry: Exit,
    /// Share of rows that pass, as `estimate` says.
    selectivity: f64,
    /// All passing vertices, once somebody asked for them; a mask has them from the start.
    matches: std.atomic.Value(?[*]u64) = .init(null),
    matches_lock: std.Thread.Mutex = .{},

    /// Checks `bytes` against `columns`, which must outlive the filter; `bytes` need not.
    pub fn compile(alloc: std.mem.Allocator, columns: *Columns, bytes: []const u8, diagnostic: *Diagnostic) CompileError!*Filter {
        var scratch = std.heap.ArenaAllocator.init(alloc);
        defer scratch.deinit();
        const parsed = try program.parse(scratch.allocator(), columns, bytes, diagnostic);

        const self = try create(alloc, columns.row_count);
        errdefer self.deinit();
        const arena = self.arena.allocator();
        var leaves: usize = 0;
        const root = try build(arena, columns, parsed.nodes, @intCast(parsed.nodes.len - 1), false, &leaves);
        self.root = root;
        const sample = Sample.init(columns.row_count, leaves);
        self.selectivity = sample.share((try order(arena, root, &sample)).passed, root);
        var steps: std.ArrayList(Step) = .empty;
        self.entry = try link(arena, &steps, root, exit_pass, exit_fail);
        self.steps = steps.items;
        return self;
    }

    /// Bit v of `bits` (byte v / 8, low bits first) says whether vertex v passes; copied.
    pub fn from_mask(alloc: std.mem.Allocator, bits: []const u8, row_count: u64) error{ InvalidArgument, OutOfMemory }!*Filter {
        if (row_count > base.limits.vertices_max or bits.len != (row_count + 7) / 8) return error.InvalidArgument;
        const self = try create(alloc, row_count);
        errdefer self.deinit();
        const words = try alloc.alloc(u64, words_for(row_count));
        const bytes = std.mem.sliceAsBytes(words);
        @memcpy(bytes[0..bits.len], bits);
        @memset(bytes[bits.len..], 0);
        for (words) |*word| word.* = std.mem.littleToNative(u64, word.*);
        if (row_count % 64 != 0) words[words.len - 1] &= column_room.low_bits(row_count % 64);
        self.matches.store(words.ptr, .release);
        const passed = count_words(words);
        self.selectivity = if (row_count == 0) 0 else @as(f64, @floatFromInt(passed)) / @as(f64, @floatFromInt(row_count));
        return self;
    }

    fn create(alloc: std.mem.Allocator, row_count: u64) error{OutOfMemory}!*Filter {
        const self = try alloc.create(Filter);
        self.* = .{
            .alloc = alloc,
            .arena = .init(alloc),
            .row_count = row_count,
            .root = &nothing,
            .steps = &.{},
            .entry = exit_fail,
            .selectivity = 0,
        };
        return self;
    }

    pub fn deinit(self: *Filter) void {
        const alloc = self.alloc;
        if (self.matches.load(.acquire)) |words| alloc.free(words[0..words_for(self.row_count)]);
        self.arena.deinit();
        alloc.destroy(self);
    }

    /// Whether `vertex` passes. Any number of threads; allocates nothing.
    pub fn passes(self: *const Filter, vertex: u32) bool {
        assert(vertex < self.row_count);
        if (self.matches.load(.acquire)) |words| return (words[vertex / 64] >> @intCast(vertex % 64)) & 1 == 1;
        var at = self.entry;
        while (at < exit_fail) {
            const step = &self.steps[at];
            at = if (step.leaf.passes(step.leaf, vertex)) step.on_true else step.on_false;
        }
        return at == exit_pass;
    }

    /// `out[i]` = whether `vertices[i]` passes. One test after the other over up to 64 vertices, so that the reads of a
    /// column overlap; faster than `passes` from about eight vertices on.
    pub fn passes_many(self: *const Filter, vertices: []const u32, out: []bool) void {
        assert(vertices.len == out.len);
        const words = self.matches.load(.acquire);
        var first: usize = 0;
        while (first < vertices.len) : (first += 64) {
            const some = vertices[first..@min(first + 64, vertices.len)];
            const passed = if (words) |bits| gather_bits(bits, some) else evaluate(self.root, Gathered{ .rows = some }, column_room.low_bits(some.len));
            for (out[first..][0..some.len], 0..) |*o, i| o.* = (passed >> @intCast(i)) & 1 == 1;
        }
    }

    /// Exactly how many rows pass. `matches_out`, when given, has ceil(row_count / 8) bytes and gets a bit a vertex.
    pub fn count(self: *const Filter, matches_out: ?[]u8) u64 {
        if (matches_out) |bytes| assert(bytes.len == (self.row_count + 7) / 8);
        const words = self.matches.load(.acquire);
        var passed: u64 = 0;
        for (0..words_for(self.row_count)) |i| {
            const word = if (words) |ready| ready[i] else self.word_at(i);
            passed += @popCount(word);
            if (matches_out) |bytes| {
                var raw: [8]u8 = undefined;
                std.mem.writeInt(u64, &raw, word, .little);
                const size = @min(8, bytes.len - 8 * i);
                @memcpy(bytes[8 * i ..][0..size], raw[0..size]);
            }
        }
        return passed;
    }

    /// All passing vertices as a set, which belongs to the filter. The first call evaluates every row (about a
    /// nanosecond each for a number, ten for a list); from then on `passes` is one look at one bit. Worth it before a
    /// scan of the passing vertices, or when many searches share the filter.
    pub fn resolve(self: *Filter) error{OutOfMemory}!base.BitSet {
        const len: usize = @intCast(self.row_count);
        if (self.matches.load(.acquire)) |words| return .over(words[0..words_for(len)], len);
        self.matches_lock.lock();
        defer self.matches_lock.unlock();
        if (self.matches.load(.acquire)) |words| return .over(words[0..words_for(len)], len);
        const words = try self.alloc.alloc(u64, words_for(len));
        for (words, 0..) |*word, i| word.* = self.word_at(i);
        self.matches.store(words.ptr, .release);
        return .over(words, len);
    }

    pub fn is_resolved(self: *const Filter) bool {
        return self.matches.load(.acquire) != null;
    }

    /// The share of rows that pass: exact for a mask, for constants and up to `sample_rows_max` rows, else from a fixed
    /// sample taken when the filter was compiled. Zero only where nothing can pass: where the sample met no passing row
    /// it is half a row of the sample, and the caller who cares asks `count`.
    pub fn estimate(self: *const Filter) f64 {
        return self.selectivity;
    }

    fn word_at(self: *const Filter, i: usize) u64 {
        const first = 64 * i;
        const len = @min(64, @as(usize, @intCast(self.row_count)) - first);
        return evaluate(self.root, Neighbors{ .first = first, .count = len }, column_room.low_bits(len));
    }
};

const nothing = Node{ .constant = false };

fn words_for(row_count: u64) usize {
    return base.BitSet.words_for(@intCast(row_count));
}

fn count_words(words: []const u64) u64 {
    var total: u64 = 0;
    for (words) |word| total += @popCount(word);
    return total;
}

fn gather_bits(words: [*]const u64, rows: []const u32) u64 {
    var passed: u64 = 0;
    for (rows, 0..) |row, i| passed |= ((words[row / 64] >> @intCast(row % 64)) & 1) << @intCast(i);
    return passed;
}

/// The two kinds of 64 rows.
const Neighbors = struct {
    first: usize,
    count: usize,

    inline fn check(self: Neighbors, leaf: *const Leaf, alive: u64) u64 {
        return leaf.word(leaf, self.first, self.count, alive);
    }
};
const Gathered = struct {
    rows: []const u32,

    inline fn check(self: Gathered, leaf: *const Leaf, alive: u64) u64 {
        return leaf.gather(leaf, self.rows, alive);
    }
};

/// Those of `alive` that pass. The depth is bounded by program.depth_max.
fn evaluate(node: *const Node, rows: anytype, alive: u64) u64 {
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
fn build(arena: std.mem.Allocator, columns: *Columns, nodes: []const program.Node, at: u32, negated: bool, leaves: *usize) error{OutOfMemory}!*Node {
    switch (nodes[at]) {
        .not => |child| return build(arena, columns, nodes, child, !negated, leaves),
        .constant => |value| {
            const node = try arena.create(Node);
            node.* = .{ .constant = value != negated };
            return node;
        },
        .leaf => |parsed| {
            const leaf = try arena.create(Leaf);
            leaf.* = try Leaf.init(arena, columns, parsed, negated);
            leaves.* += 1;
            const node = try arena.create(Node);
            node.* = .{ .leaf = leaf };
            return node;
        },
        inline .all, .any => |indices, tag| {
            const children = try arena.alloc(*Node, indices.len);
            for (children, indices) |*child, index| child.* = try build(arena, columns, nodes, index, negated, leaves);
            const node = try arena.create(Node);
            node.* = join((tag == .all) != negated, children);
            return node;
        },
    }
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

/// Rows spread over all vertices, one from each of equal runs; where in its run is pseudo-random, so that nothing
/// periodic in the placement is met in step.
const Sample = struct {
    rows: [sample_rows_max]u32,
    len: usize,
    row_count: u64,

    fn init(row_count: u64, leaves: usize) Sample {
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

    fn share(self: *const Sample, passed: Bits, root: *const Node) f64 {
        if (root.* == .constant) return if (root.constant) 1 else 0;
        if (self.len == 0) return 0;
        const len: f64 = @floatFromInt(self.len);
        const found: f64 = @floatFromInt(count_words(&passed));
        if (self.len == self.row_count) return found / len;
        return std.math.clamp(found, 0.5, len - 0.5) / len;
    }
};

const Bits = [sample_words_max]u64;
const Ordered = struct { passed: Bits, cost: f32 };

/// Sorts the children of every node so that what decides most for the least comes first, by what the sample says.
fn order(arena: std.mem.Allocator, node: *Node, sample: *const Sample) error{OutOfMemory}!Ordered {
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

/// Appends the steps of `node` and returns the first. Children are linked from the last to the first, since each leads
/// to the one behind it.
fn link(arena: std.mem.Allocator, steps: *std.ArrayList(Step), node: *const Node, on_true: Exit, on_false: Exit) error{OutOfMemory}!Exit {
    switch (node.*) {
        .constant => |value| return if (value) on_true else on_false,
        .leaf => |leaf| {
            try steps.append(arena, .{ .leaf = leaf, .on_true = on_true, .on_false = on_false });
            return @intCast(steps.items.len - 1);
        },
        inline .all, .any => |children, tag| {
            var first = if (tag == .all) on_true else on_false;
            var i = children.len;
            while (i > 0) : (i -= 1) {
                first = if (tag == .all)
                    try link(arena, steps, children[i - 1], first, on_false)
                else
                    try link(arena, steps, children[i - 1], on_true, first);
            }
            return first;
        },
    }
}
