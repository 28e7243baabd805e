//! The nearest rows of the delta: by estimates of those that are coded, and a look at all others.
const std = @import("std");
const base = @import("base");
const codes_file = @import("codes.zig");
const scan = @import("scan.zig");
const View = @import("delta.zig").View;
const BitSet = base.BitSet;
const Estimator = codes_file.Estimator;
const Hit = scan.Hit;

pub const How = struct {
    k: usize,
    /// 1: every row is measured.
    recall: f32,
    /// With as many as there are rows every row is measured.
    list_size: u32 = 0,
    /// None, one set for all queries, or one each (null: all rows that live).
    passing: []const ?BitSet,
};

/// One call's question, and room for as many threads as answer it at once.
pub const Question = struct {
    arena: std.heap.ArenaAllocator,
    view: *const View,
    how: How,
    /// Rows that live and pass: one set for all queries, or one each, and how many they are.
    alive: []BitSet,
    living: []u64,
    /// Rows that are estimated before they are measured; the others come after them.
    coded: u32 = 0,
    idle: std.ArrayList(*Estimator) = .empty,
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
        if (how.recall < 1 and how.list_size < view.rows) try self.prepare_estimates(room, threads);
    }

    pub fn deinit(self: *Question) void {
        self.arena.deinit();
    }

    fn prepare_estimates(self: *Question, room: std.mem.Allocator, threads: usize) error{OutOfMemory}!void {
        const codes = &self.view.delta.codes;
        const chunk_rows = codes_file.chunk_rows;
        self.coded = @min(codes.coded.load(.acquire), self.view.rows / chunk_rows * chunk_rows);
        if (self.coded == 0) return;
        try self.idle.ensureTotalCapacity(room, threads);
        for (try room.alloc(Estimator, threads)) |*estimator| {
            estimator.* = try .init(room, codes, self.view.shape);
            self.idle.appendAssumeCapacity(estimator);
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
        self.estimate_for(&asked[0]);
        scan.scan(self.view.shape, self.view.records, self.view.rows, &asked);
        return self.ended(query, &asked[0]);
    }

    /// Rows that were found, and those that were estimated or measured.
    const Answer = struct { count: u32, visits: u32 };

    fn ended(self: *const Question, query: usize, asked: *scan.Asked) Answer {
        return .{ .count = @intCast(asked.nearest.sorted().len), .visits = @intCast(self.living[self.passing_of(query)]) };
    }

    /// Coded rows are offered, and the scan begins behind them.
    fn estimate_for(self: *Question, asked: *scan.Asked) void {
        if (self.coded == 0) return;
        const estimator = self.take();
        defer self.put(estimator);
        estimator.offer_to(asked, self.coded);
        asked.from = self.coded;
    }

    fn take(self: *Question) *Estimator {
        self.lock.lock();
        defer self.lock.unlock();
        return self.idle.pop().?; // one for each thread
    }

    fn put(self: *Question, estimator: *Estimator) void {
        self.lock.lock();
        defer self.lock.unlock();
        self.idle.appendAssumeCapacity(estimator);
    }
};

/// Writes k hits a query, nearest first; `counts` says how many there are, `looks` how many rows were looked at.
pub fn search(allocator: std.mem.Allocator, view: *const View, queries: []const f32, how: How, hits: []Hit, counts: []u32, looks: []u32) error{OutOfMemory}!void {
    const dim = view.shape.dim;
    var question: Question = undefined;
    try question.init(allocator, view, how, 1);
    defer question.deinit();
    const asked = try question.arena.allocator().alloc(scan.Asked, counts.len);
    for (asked, 0..) |*one, i| {
        one.* = question.ask(i, queries[i * dim ..][0..dim], std.math.inf(f32), hits[i * how.k ..][0..how.k]);
        question.estimate_for(one);
    }
    // Together: a row that was fetched for one query is measured for the others, too.
    scan.scan(view.shape, view.records, view.rows, asked);
    for (asked, counts, looks, 0..) |*one, *count, *look, i| {
        const answer = question.ended(i, one);
        count.* = answer.count;
        look.* = answer.visits;
    }
}

/// If rows wait to be coded, as after a start from a full log, a search codes some.
pub fn code_some(view: *const View) void {
    const codes = &view.delta.codes;
    const waiting = view.rows -| codes.coded.load(.monotonic);
    if (waiting >= 2 * codes_file.chunk_rows) codes_file.code(view.delta.allocator, codes, view.shape, view.rows, codes_file.chunk_rows);
}
