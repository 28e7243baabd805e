//! A filter ready to run. Truth has three values, as in SQL and Arrow (Kleene): a comparison with null is null, `not`
//! null is null, and only what is true passes. leaf.zig says how two values become enough.
//!
//! Two forms come out of the tree: steps with two exits each, for one vertex at a time with as few tests as can be;
//! and the tree itself, for 64 rows or vertices at a time. Postings of the columns (leaf.zig) make three things cheap:
//! counts (estimate.zig), and all rows that pass, as a list of few or as bits (resolve.zig).
const std = @import("std");
const assert = std.debug.assert;
const base = @import("base");
const column_room = @import("column.zig");
const estimates = @import("estimate.zig");
const program = @import("program.zig");
const resolving = @import("resolve.zig");
const tree = @import("leaf.zig");
const Columns = column_room.Columns;
const Diagnostic = @import("column.zig").Diagnostic;
const Gathered = tree.Gathered;
const Leaf = @import("leaf.zig").Leaf;
const Neighbors = tree.Neighbors;
const Node = tree.Node;
const Set = resolving.Set;
const evaluate = tree.evaluate;

pub const CompileError = program.ParseError || @import("column.zig").PartError;

/// The target of a step: another step, or an end.
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
    /// The rows that pass another filter and are in a set of rows; then there is no tree.
    within: ?Within = null,
    /// Rows that pass, as `estimate` says.
    expected: estimates.Estimate,
    /// All passing vertices as bits, computed on first use; a mask has them from the start.
    bits: std.atomic.Value(?[*]u64) = .init(null),
    /// All passing vertices as they were found, computed on first use; a few of them are not stored as bits.
    set: ?Set = null,
    has_set: std.atomic.Value(bool) = .init(false),
    /// Held while either is made.
    lock: std.Thread.Mutex = .{},

    /// Checks `bytes` against `columns`, which must outlive the filter; `bytes` need not.
    pub fn compile(alloc: std.mem.Allocator, columns: *Columns, bytes: []const u8, diagnostic: *Diagnostic) CompileError!*Filter {
        var scratch = std.heap.ArenaAllocator.init(alloc);
        defer scratch.deinit();
        const parsed = try program.parse(scratch.allocator(), columns, bytes, diagnostic);

        const self = try create(alloc, columns.row_count);
        errdefer self.deinit();
        const arena = self.arena.allocator();
        var leaves: usize = 0;
        const root = try tree.build(arena, columns, parsed.nodes, @intCast(parsed.nodes.len - 1), false, &leaves, diagnostic);
        self.root = root;
        const sample = estimates.Sample.init(columns.row_count, leaves);
        const ordered = try estimates.order(arena, root, &sample);
        self.expected = estimates.estimate(root, &sample, &ordered.passed);
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
        self.bits.store(words.ptr, .release);
        self.set = .{ .bits = words };
        self.has_set.store(true, .release);
        self.expected = .{ .count = @floatFromInt(estimates.count_words(words)), .is_exact = true };
        return self;
    }

    /// A filter that passes the rows of `inner` that are also in the mask `rows`, for data with dead rows. Both must outlive it. Nothing
    /// is copied before a call asks for all matches.
    pub fn restrict(alloc: std.mem.Allocator, inner: *Filter, rows: *const Filter) error{ InvalidArgument, OutOfMemory }!*Filter {
        const words = rows.bits.load(.acquire) orelse return error.InvalidArgument;
        if (rows.row_count != inner.row_count) return error.InvalidArgument;
        const self = try create(alloc, inner.row_count);
        self.within = .{ .inner = inner, .words = words };
        const count_ = inner.expected.count * rows.estimate();
        self.expected = .{ .count = count_, .is_exact = count_ == 0 };
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
            .expected = .{ .count = 0, .is_exact = true },
        };
        return self;
    }

    pub fn deinit(self: *Filter) void {
        const alloc = self.alloc;
        const bits = self.bits.load(.acquire);
        if (bits) |words| alloc.free(words[0..words_for(self.row_count)]);
        if (self.set) |set| {
            // Bits are those above.
            if (set == .list) set.deinit(alloc) else assert(set.bits.ptr == bits.?);
        }
        self.arena.deinit();
        alloc.destroy(self);
    }

    /// Whether `vertex` passes. Any number of threads; allocates nothing.
    pub fn passes(self: *const Filter, vertex: u32) bool {
        assert(vertex < self.row_count);
        if (self.bits.load(.acquire)) |words| return (words[vertex / 64] >> @intCast(vertex % 64)) & 1 == 1;
        if (self.within) |within| return within.has(vertex) and within.inner.passes(vertex);
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
        const words = self.bits.load(.acquire);
        if (words == null) if (self.within) |within| {
            within.inner.passes_many(vertices, out);
            for (vertices, out) |vertex, *o| o.* = o.* and within.has(vertex);
            return;
        };
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
        if (matches_out == null and self.is_exact()) return @intFromFloat(self.expected.count);
        const words = self.bits.load(.acquire);
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

    /// All passing vertices as a set of bits, which belongs to the filter: n / 8 bytes. From then on `passes` is one look
    /// at one bit. The first call makes it from postings where that is less work than a look at every row: some
    /// microseconds for thousands of matches, and for the bits themselves; about a nanosecond a row without postings,
    /// ten for a list. Any thread; one makes it while the others wait.
    pub fn resolve(self: *Filter) error{OutOfMemory}!base.BitSet {
        const len: usize = @intCast(self.row_count);
        if (self.bits.load(.acquire)) |words| return .over(words[0..words_for(len)], len);
        self.lock.lock();
        defer self.lock.unlock();
        if (self.bits.load(.acquire)) |words| return .over(words[0..words_for(len)], len);
        switch (try self.found_set()) {
            .bits => |words| return .over(words, len),
            .list => |rows| {
                const words = try resolving.to_bits(self.alloc, rows, self.row_count);
                self.bits.store(words.ptr, .release);
                return .over(words, len);
            },
        }
    }

    /// The rough cost of `resolve` in nanoseconds; 0 where it is done. A check of an unresolved filter takes some
    /// ten nanoseconds, of a resolved one about one: callers with many tests resolve first where this is cheap.
    fn resolve_cost_ns(self: *const Filter) f64 {
        if (self.is_resolved()) return 0;
        if (self.within) |within| return within.inner.resolve_cost_ns() + @as(f64, @floatFromInt(words_for(self.row_count)));
        return resolving.cost_ns(self.root, self.row_count);
    }

    pub fn is_resolved(self: *const Filter) bool {
        return self.bits.load(.acquire) != null;
    }

    /// All passing vertices, ascending. If postings say that they are few, this makes a list of them instead of a set of
    /// n bits, for scans of few matches. Any thread.
    pub fn matches(self: *Filter) error{OutOfMemory}!Matches {
        const set = if (self.has_set.load(.acquire)) self.set.? else blk: {
            self.lock.lock();
            defer self.lock.unlock();
            break :blk try self.found_set();
        };
        const len: usize = @intCast(self.row_count);
        return switch (set) {
            .list => |rows| .{ .list = .{ .rows = rows } },
            .bits => |words| .{ .bits = base.BitSet.over(words, len).iterator() },
        };
    }

    /// With the lock held.
    fn found_set(self: *Filter) error{OutOfMemory}!Set {
        if (self.set) |set| return set;
        const set = if (self.within) |within| try within.found(self.alloc) else try resolving.resolve(self.alloc, self.root, self.row_count);
        self.set = set;
        if (set == .bits) self.bits.store(set.bits.ptr, .release);
        self.has_set.store(true, .release);
        return set;
    }

    /// The share of rows that pass. Exact where `is_exact` says so: for masks, constants, single conditions over columns
    /// with postings, rare conditions joined with others, and small tables. Else from samples taken when the filter was
    /// compiled. Zero only where nothing can pass: where a sample met no passing row it is half a row of it.
    pub fn estimate(self: *const Filter) f64 {
        if (self.row_count == 0) return 0;
        return self.expected.count / @as(f64, @floatFromInt(self.row_count));
    }

    /// Whether `estimate` is the share itself.
    pub fn is_exact(self: *const Filter) bool {
        return self.expected.is_exact;
    }

    /// Bytes of the sets of matches made so far.
    pub fn memory_bytes(self: *Filter) u64 {
        self.lock.lock();
        defer self.lock.unlock();
        var total: u64 = if (self.is_resolved()) 8 * words_for(self.row_count) else 0;
        if (self.set) |set| switch (set) {
            .list => |rows| total += 4 * rows.len,
            .bits => {},
        };
        return total;
    }

    /// `matches`, if computed before: allocates nothing and does not wait.
    pub fn matches_found(self: *const Filter) ?Matches {
        if (!self.has_set.load(.acquire)) return null;
        return @constCast(self).matches() catch unreachable; // found: nothing to allocate
    }

    /// Rows 64·i to 64·i + 63, one bit each. Any number of threads; allocates nothing.
    pub fn matching_word(self: *const Filter, i: usize) u64 {
        return if (self.bits.load(.acquire)) |words| words[i] else self.word_at(i);
    }

    fn word_at(self: *const Filter, i: usize) u64 {
        if (self.within) |within| return within.words[i] & within.inner.matching_word(i);
        const some = Neighbors.of(i, @intCast(self.row_count));
        return evaluate(self.root, some, column_room.low_bits(some.count));
    }
};

const Within = struct {
    inner: *Filter,
    /// Of a mask: a bit a row.
    words: [*]const u64,

    inline fn has(self: *const Within, vertex: u32) bool {
        return (self.words[vertex / 64] >> @intCast(vertex % 64)) & 1 == 1;
    }

    fn found(self: *const Within, alloc: std.mem.Allocator) error{OutOfMemory}!Set {
        var all = try self.inner.matches();
        switch (all) {
            .list => |list| {
                var kept: usize = 0;
                for (list.rows) |row| kept += @intFromBool(self.has(row));
                const rows = try alloc.alloc(u32, kept);
                kept = 0;
                while (all.next()) |row| if (self.has(row)) {
                    rows[kept] = row;
                    kept += 1;
                };
                return .{ .list = rows };
            },
            .bits => {
                const words = try alloc.alloc(u64, words_for(self.inner.row_count));
                for (words, 0..) |*word, i| word.* = self.words[i] & self.inner.matching_word(i);
                return .{ .bits = words };
            },
        }
    }
};

/// An iterator over passing vertices, ascending.
pub const Matches = union(enum) {
    list: struct { rows: []const u32, at: usize = 0 },
    bits: base.BitSet.Iterator,

    /// The number of rows that are left.
    pub fn count(self: *const Matches) u64 {
        switch (self.*) {
            .list => |list| return list.rows.len - list.at,
            .bits => |it| {
                if (it.index >= it.words.len) return 0;
                return @popCount(it.word) + estimates.count_words(it.words[it.index + 1 ..]);
            },
        }
    }

    pub fn next(self: *Matches) ?u32 {
        switch (self.*) {
            .list => |*list| {
                if (list.at == list.rows.len) return null;
                list.at += 1;
                return list.rows[list.at - 1];
            },
            .bits => |*it| return if (it.next()) |vertex| @intCast(vertex) else null,
        }
    }
};

const nothing = Node{ .constant = false };

fn words_for(row_count: u64) usize {
    return base.BitSet.words_for(@intCast(row_count));
}

fn gather_bits(words: [*]const u64, rows: []const u32) u64 {
    var passed: u64 = 0;
    for (rows, 0..) |row, i| passed |= ((words[row / 64] >> @intCast(row % 64)) & 1) << @intCast(i);
    return passed;
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
