//! The nearest rows of the delta: a walk over those that are linked where it takes less, and a look at all others.
const std = @import("std");
const base = @import("base");
const links_room = @import("links.zig");
const link = @import("link.zig");
const scan = @import("scan.zig");
const View = @import("delta.zig").View;
const Walk = @import("link.zig").Walk;
const BitSet = base.BitSet;
const Hit = scan.Hit;
const Links = links_room.Links;

/// The cost of measuring a row anywhere, if measuring one row after the other costs 1.
const look_cost = 3;
/// If segments have found k nearest, few rows of the delta are nearer: such a share of the list leads to them. With half of
/// it recall fell below what was asked where no row leads to another (a normal distribution in 48 dimensions).
const bounded_share = 3;
/// A search links one of this many waiting rows itself, so it takes at most about twice as long as its own scan of them.
const linked_by_search = 8192;

pub const How = struct {
    k: usize,
    /// 1: every row is looked at.
    recall: f32,
    /// Candidates that a walk keeps at least. With as many as there are rows every row is looked at.
    list_size: u32 = 0,
    /// None, one set for all queries, or one each (null: all rows that live).
    passing: []const ?BitSet,
};

/// One call's question, and room for the walks of as many threads as answer it at once.
pub const Question = struct {
    arena: std.heap.ArenaAllocator,
    view: *const View,
    how: How,
    /// Rows that live and pass: one set for all queries, or one each, and how many they are.
    alive: []BitSet,
    living: []u64,
    /// Rows that walks may find; 0: nobody walks.
    rows: u32 = 0,
    list_size: usize = 0,
    idle: std.ArrayList(Walk) = .empty,
    lock: std.Thread.Mutex = .{},

    /// `view` outlives it, and what `how` points at. It stays where it is.
    pub fn init(self: *Question, allocator: std.mem.Allocator, view: *const View, how: How, threads: usize) error{OutOfMemory}!void {
        self.* = .{ .arena = .init(allocator), .view = view, .how = how, .alive = undefined, .living = undefined };
        errdefer self.arena.deinit();
        const room = self.arena.allocator();
        self.alive = try room.alloc(BitSet, @max(1, how.passing.len));
        self.living = try room.alloc(u64, self.alive.len);
        for (self.alive, self.living, 0..) |*set, *count, i| {
            set.* = try BitSet.init(room, view.rows);
            const given = if (how.passing.len == 0) null else how.passing[i];
            for (set.words, view.deleted.words, 0..) |*word, deleted, w| word.* = ~deleted & if (given) |one| one.words[w] else ~@as(u64, 0);
            const rest: u6 = @intCast(view.rows % 64);
            if (rest != 0) set.words[set.words.len - 1] &= (@as(u64, 1) << rest) - 1;
            count.* = set.count();
        }
        if (how.recall < 1) try self.prepare_walks(room, threads);
    }

    pub fn deinit(self: *Question) void {
        self.arena.deinit();
    }

    fn prepare_walks(self: *Question, room: std.mem.Allocator, threads: usize) error{OutOfMemory}!void {
        const links: *const Links = &self.view.delta.links;
        const linked = links.linked.load(.acquire);
        const rows = @min(linked, self.view.rows);
        const list_size = @max(self.how.list_size, list_of(Links.float(&links.list_size), self.how.k, self.how.recall));
        if (list_size >= rows) return;
        self.rows = rows;
        self.list_size = list_size;
        try self.idle.ensureTotalCapacity(room, threads);
        for (0..threads) |_| {
            var walk: Walk = try .init(room, links, self.view.shape, rows, linked, list_size);
            try walk.reserve();
            self.idle.appendAssumeCapacity(walk);
        }
    }

    fn passing_of(self: *const Question, query: usize) usize {
        return if (self.alive.len == 1) 0 else query;
    }

    fn ask(self: *const Question, query: usize, values: []const f32, within: f32, hits: []Hit) scan.Asked {
        return .{
            .point = .of(self.view.shape.metric, values),
            .passing = self.alive[self.passing_of(query)],
            .from = 0,
            .nearest = .within(hits, within),
        };
    }

    /// The nearest of one query that lie within a distance, nearest first. Any thread.
    pub fn answer(self: *Question, query: usize, values: []const f32, within: f32, hits: []Hit) Answer {
        var asked = [1]scan.Asked{self.ask(query, values, within, hits)};
        const visits = self.walk_for(query, &asked[0], within);
        scan.scan(self.view.shape, self.view.records, self.view.rows, &asked);
        return self.ended(query, &asked[0], visits);
    }

    const Answer = struct { count: u32, visits: u32 };

    fn ended(self: *const Question, query: usize, asked: *scan.Asked, visits: u32) Answer {
        const scanned = if (asked.from == 0) self.living[self.passing_of(query)] else asked.passing.count_from(asked.from);
        return .{ .count = @intCast(asked.nearest.sorted().len), .visits = visits + @as(u32, @intCast(scanned)) };
    }

    /// If that costs less, the rows that the walk found are offered, and the scan begins behind them.
    fn walk_for(self: *Question, query: usize, asked: *scan.Asked, within: f32) u32 {
        if (self.rows == 0) return 0;
        const share = @as(f64, @floatFromInt(self.rows)) / @as(f64, @floatFromInt(self.view.rows));
        const passing = share * @as(f64, @floatFromInt(self.living[self.passing_of(query)]));
        const is_bounded = within < std.math.inf(f32);
        const links: *Links = &self.view.delta.links;
        const visits = if (is_bounded) &links.visits_within else &links.visits;
        const places: f32 = @floatFromInt(self.list_size);
        const expected: f64 = look_cost * Links.float(visits) * places;
        // As many more are met as do not pass.
        if (passing == 0 or expected * @as(f64, @floatFromInt(self.rows)) / passing > passing) return 0;
        var walk = self.take();
        defer self.put(walk);
        const until: Walk.Until = .{ .within = if (is_bounded) within else -std.math.inf(f32), .visits = @intFromFloat(passing / look_cost) };
        const list_size = if (is_bounded) @min(self.list_size, self.list_size / bounded_share + self.how.k) else self.list_size;
        const is_walked = walk.offer_to(&asked.nearest, asked.point, list_size, asked.passing, until) catch unreachable; // has its room
        if (is_walked) asked.from = self.rows;
        if (is_bounded and self.how.passing.len == 0) Links.set_float(visits, 0.98 * Links.float(visits) + 0.02 * @as(f32, @floatFromInt(walk.visits)) / places);
        return walk.visits;
    }

    fn take(self: *Question) Walk {
        self.lock.lock();
        defer self.lock.unlock();
        return self.idle.pop().?; // one for each thread
    }

    fn put(self: *Question, walk: Walk) void {
        self.lock.lock();
        defer self.lock.unlock();
        self.idle.appendAssumeCapacity(walk);
    }
};

/// Writes k hits a query, nearest first; `counts` says how many there are, `looks` how many rows were measured.
pub fn search(allocator: std.mem.Allocator, view: *const View, queries: []const f32, how: How, hits: []Hit, counts: []u32, visits: []u32) error{OutOfMemory}!void {
    const dim = view.shape.dim;
    var question: Question = undefined;
    try question.init(allocator, view, how, 1);
    defer question.deinit();
    const asked = try question.arena.allocator().alloc(scan.Asked, counts.len);
    for (asked, visits, 0..) |*one, *visit, i| {
        one.* = question.ask(i, queries[i * dim ..][0..dim], std.math.inf(f32), hits[i * how.k ..][0..how.k]);
        visit.* = question.walk_for(i, one, std.math.inf(f32));
    }
    // Together: a row that was fetched for one query is measured for the others, too.
    scan.scan(view.shape, view.records, view.rows, asked);
    for (asked, counts, visits, 0..) |*one, *count, *visit, i| {
        const answer = question.ended(i, one, visit.*);
        count.* = answer.count;
        visit.* = answer.visits;
    }
}

/// The list was measured for ten nearest. More of them take a longer one, and so does a higher recall.
fn list_of(measured: f32, k: usize, recall: f32) usize {
    const missed = @max(1 - recall, 1e-4);
    const longer = if (missed < missed_usual) missed_usual / missed else 1;
    const nearest: f32 = @floatFromInt(k);
    return @intFromFloat(measured * longer * @sqrt(@max(1, nearest / link.sample_k)) + nearest);
}

const missed_usual = 0.01;

/// If many rows wait to be linked, as after a start from a full log, each search links a few.
pub fn link_some(allocator: std.mem.Allocator, view: *const View) void {
    const links: *Links = &view.delta.links;
    const waiting = view.rows -| links.linked.load(.monotonic);
    if (waiting > 2 * link.tail_rows) link.link(allocator, links, view.shape, view.rows, waiting / linked_by_search + 1);
}
