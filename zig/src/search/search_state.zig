//! One query as a state machine. It never blocks and never reads: `step` says which pages it wants, and each page is
//! handed to it as it arrives.
//!
//!   idle ──▶ graph ──────────┐
//!     ├────▶ gated ──▶ scan ─┤
//!     ├────▶ scan ───────────┼──▶ rescore ──┐
//!     ├────▶ ranked ─────────┤              │
//!     ├────▶ disk ───────────┼──▶ drain ────┤
//!     │                      └──────────────┼──▶ done
//!     └────▶ every ─────────────────────────┘          from any state `end` leads back to idle
//!
//! Links in memory: a turn of navigation, which reads nothing, then a round of pages, until navigation brings no page
//! that is wanted. Every record of a page that arrives is scored with its full code and enters the results; what was
//! never met enters the list, too. The first round is the burst of the design, the later ones are its finish: all choose
//! by the same bound.
//!
//!   graph    Follows links in memory, best first, with codes in memory, until every candidate was expanded that is near enough.
//!   gated    The same with a filter in front of the list (filtered.zig). Where that turns out dearer it becomes a scan.
//!   scan     The codes of all that may be answers were looked at: there is nothing to navigate to.
//!   ranked   Codes of pages have said which to read (ranked.zig).
//!   disk     Follows links on disk, and goes on with whatever pages are there (on_disk.zig).
//!   drain    Links on disk, nothing more is wanted: what is on its way may still be among the answers.
//!   rescore  The best by codes are scored from the stored vectors (rescoring.zig).
//!   every    All stored vectors are looked at (every.zig).
//!   done     The results stand.
//!
//! What belongs to one state lives in it and goes with it. States point at the search's room, which is allocated once.
const std = @import("std");
const builtin = @import("builtin");
const base = @import("base");
const layout = @import("layout");
const quant = @import("quant");
const filter_room = @import("filter");
const index = @import("index");
const Cost = @import("cost.zig").Cost;
const lists = @import("list.zig");
const cached = @import("cached.zig");
const entry = @import("entry.zig");
const navigation = @import("navigation.zig");
const on_disk = @import("on_disk.zig");
const Shared = @import("shared.zig").Shared;
const filtered = @import("filtered.zig");
const ranked = @import("ranked.zig");
const rescoring = @import("rescoring.zig");
const every = @import("every.zig");
const parameters_file = @import("parameters.zig");
const recent_pages = @import("recent_pages.zig");
const RecentPages = recent_pages.RecentPages;
const Pending = @import("pending.zig").Pending;
const PageSet = @import("page_set.zig").PageSet;
const Round = @import("round.zig").Round;
const Parameters = parameters_file.Parameters;
const assert = std.debug.assert;

pub const PageError = layout.page.Corrupt || error{BadList};

/// pages: go on when the pages wanted (and those on their way) have arrived; done: nothing more is wanted.
pub const Want = enum { pages, done };

/// The files that a search reads pages of, by the numbers that devices know them by.
pub const File = enum(u1) { pages, vectors };

/// What becomes of the buffer of a page that has arrived.
pub const Fate = union(enum) {
    /// Nothing in it is needed any more.
    free,
    /// It stays with the query, which releases it.
    hold,
    /// It stays, and another one that the query held is free.
    exchange: u32,
};

/// What a query asks for; it stands until the search ends.
pub const Request = struct {
    vector: []const u8,
    dtype: index.Dtype,
    parameters: Parameters,
    filter: ?*const filter_room.Filter = null,
    /// Taken as absent: a query that is itself a row of the index looks for its other neighbors (calibration).
    excluded: u32 = excluded_none,
    /// Searches of other parts answer the same query (company.zig).
    company: Company = .none,
    held_max: u32 = RecentPages.max,

    pub const Company = enum {
        none,
        /// Of all parts this one has the most rows.
        largest,
        smaller,
    };

    pub const excluded_none = std.math.maxInt(u32);
};

/// Links in memory, without a filter in front of the list.
pub const Graph = struct { pending: Pending };

/// What distances in the results are.
pub const Distances = enum { estimated, exact };

pub const State = union(enum) {
    idle,
    graph: Graph,
    gated: filtered.Gate,
    scan,
    ranked: ranked.Ranked,
    disk: on_disk.Walk,
    drain,
    /// Codes have said what they can here; those of other parts have not yet.
    coded,
    rescore: rescoring.Rescoring,
    every: every.Every,
    done: Distances,

    const Tag = std.meta.Tag(State);

    /// The arrows of the drawing; a search may end in any state.
    fn leads_to(from: Tag, to: Tag) bool {
        return to == .idle or switch (from) {
            .idle => switch (to) {
                .graph, .gated, .scan, .ranked, .disk, .every => true,
                else => false,
            },
            .graph => to == .coded or to == .rescore or to == .done,
            .gated => to == .scan or to == .coded or to == .rescore or to == .done,
            .ranked => to == .coded or to == .rescore or to == .done,
            .scan, .disk => to == .coded or to == .rescore or to == .drain or to == .done,
            .coded => to == .rescore,
            .drain, .rescore, .every => to == .done,
            .done => false,
        };
    }
};

/// What states point at.
const Room = struct {
    pending: []lists.Found,
    gate: filtered.Room,
    recent: []recent_pages.Page,
    rescoring: rescoring.Room,

    fn init(allocator: std.mem.Allocator, shared: *const Shared) error{OutOfMemory}!Room {
        const pending = try base.alloc_untouched(allocator, lists.Found, Pending.max);
        errdefer base.free_untouched(allocator, pending);
        var gate = try filtered.Room.init(allocator);
        errdefer gate.deinit(allocator);
        const recent = try base.alloc_untouched(allocator, recent_pages.Page, if (shared.plan == .links_on_disk) RecentPages.max else 0);
        errdefer base.free_untouched(allocator, recent);
        return .{ .pending = pending, .gate = gate, .recent = recent, .rescoring = try .init(allocator, shared.reader) };
    }

    fn deinit(self: *Room, allocator: std.mem.Allocator) void {
        base.free_untouched(allocator, self.pending);
        self.gate.deinit(allocator);
        base.free_untouched(allocator, self.recent);
        self.rescoring.deinit(allocator);
    }
};

pub const Search = struct {
    shared: *const Shared,
    room: Room,
    state: State = .idle,

    request: Request = undefined,
    /// The request's; a plan may widen its bound.
    parameters: Parameters = undefined,
    /// The k-th best that all parts know, and the same of upper bounds of distances; infinity where it is alone.
    told: f32 = std.math.inf(f32),
    /// What was told are estimates: once there are full distances in their place it may be farther, so nothing ends by it.
    told_estimates: bool = false,
    told_upper: f64 = std.math.inf(f64),
    /// Beside a larger part: where a walk may end early.
    beside: ?navigation.Beside = null,
    query: quant.Query,
    /// The query in float32, less the mean; while vectors are scored as it was given.
    row: []f32,
    rotated: []f32,

    list: lists.List,
    visited: lists.Visited,
    results: lists.Results,
    round: Round = .{},
    /// Pages that were asked for and are not to be asked for again.
    pages: PageSet,
    /// Pages whose codes were looked at, and stretches whose lists, where links are shared (page_ways.zig).
    followed: PageSet,
    /// Links on disk: vertices whose records came from the cache.
    from_cache: PageSet,
    released: recent_pages.Released = .{},
    cost: Cost = .{},

    neighbors: [layout.adjacency.neighbors_max]u32 = undefined,
    fresh: [fresh_max]u32 = undefined,
    distances: [fresh_max]f32 = undefined,

    pub const fresh_max = 512;
    /// A part of so few rows beside a larger one: to estimate all of them takes no longer than a walk.
    const rows_looked_at = 512;
    const visited_capacity = 1 << 17;

    comptime {
        assert(fresh_max >= layout.page.records_max);
        assert(fresh_max >= layout.adjacency.neighbors_max);
    }

    pub fn init(allocator: std.mem.Allocator, shared: *const Shared) error{OutOfMemory}!Search {
        const reader = shared.reader;
        var room = try Room.init(allocator, shared);
        errdefer room.deinit(allocator);
        var query = try quant.Query.init(allocator, reader.codes.params);
        errdefer query.deinit(allocator);
        query.bind(&reader.codes);
        const row = try allocator.alloc(f32, reader.header.dim_in);
        errdefer allocator.free(row);
        const rotated = try allocator.alloc(f32, reader.header.dim_code);
        errdefer allocator.free(rotated);
        var list = try lists.List.init(allocator, parameters_file.list_size_max);
        errdefer list.deinit(allocator);
        var visited = try lists.Visited.init(allocator, visited_capacity);
        errdefer visited.deinit(allocator);
        var results = try lists.Results.init(allocator, if (reader.vectors == null) parameters_file.k_max else rescoring.neighbors_max);
        errdefer results.deinit(allocator);
        var pages = try PageSet.init(allocator);
        errdefer pages.deinit(allocator);
        var followed = try PageSet.init(allocator);
        errdefer followed.deinit(allocator);
        return .{
            .shared = shared,
            .room = room,
            .query = query,
            .row = row,
            .rotated = rotated,
            .list = list,
            .visited = visited,
            .results = results,
            .pages = pages,
            .followed = followed,
            .from_cache = try .init(allocator),
        };
    }

    pub fn deinit(self: *Search, allocator: std.mem.Allocator) void {
        assert(self.state == .idle);
        self.room.deinit(allocator);
        self.query.deinit(allocator);
        allocator.free(self.row);
        allocator.free(self.rotated);
        self.list.deinit(allocator);
        self.visited.deinit(allocator);
        self.results.deinit(allocator);
        self.pages.deinit(allocator);
        self.followed.deinit(allocator);
        self.from_cache.deinit(allocator);
    }

    /// Takes a query; what follows is `step`.
    pub fn start(self: *Search, request: Request) void {
        assert(self.state == .idle);
        assert(self.released.count == 0);
        const reader = self.shared.reader;
        const parameters = &self.parameters;
        self.request = request;
        parameters.* = request.parameters;
        parameters.exact = parameters.exact and reader.vectors != null;
        self.told = std.math.inf(f32);
        self.told_estimates = false;
        self.told_upper = std.math.inf(f64);
        self.beside = null;
        index.space.convert(request.dtype, request.vector, self.row);
        index.space.place(reader.metric, self.row);
        for (self.row, reader.mean) |*value, mean| value.* -= mean;
        reader.rotation.apply(self.row, self.rotated);
        self.query.prepare(self.rotated);
        self.list.reset(parameters.list_size);
        self.results.reset(parameters.k, if (parameters.exact) rescoring.spare else 0);
        self.visited.reset(parameters.list_size * 12 + 256);
        // As if met before: it enters no list, and so is not followed either.
        if (request.excluded != Request.excluded_none) _ = self.visited.insert(request.excluded);
        self.pages.reset();
        self.followed.reset();
        self.from_cache.reset();
        self.round.reset();
        self.cost = .{ .outside = @intFromBool(self.lies_outside()) };
        if (parameters.every and parameters.exact) return every.begin(self);
        if (self.shared.plan == .pages) return ranked.begin(self);
        if (request.filter) |filter| return filtered.begin(self, filter);
        if (parameters.scan or self.is_remote()) return filtered.scan(self);
        if (on_disk.prefers_scan(self)) return on_disk.scan(self);
        if (request.company == .smaller and self.shared.plan == .links_in_memory and reader.n() <= rows_looked_at) return filtered.look_at_all(self);
        self.begin_graph();
    }

    pub fn begin_graph(self: *Search) void {
        const newcomers: Pending = .{ .items = self.room.pending };
        self.change(switch (self.shared.plan) {
            .links_in_memory => .{ .graph = .{ .pending = newcomers } },
            .links_on_disk => .{ .disk = .{ .pending = newcomers, .recent = .{ .slots = self.room.recent[0..self.request.held_max] } } },
            .pages => unreachable, // `start` ranks them
        });
        if (self.shared.plan == .links_in_memory and self.request.filter == null) self.stop_by_distance();
        entry.enter(self);
    }

    /// Ways from vertices that are much farther than the k-th nearest hardly ever lead to anything nearer than it. Not for
    /// products, which are no distances; nor where links are shared, for these lead less straight, and the longer lists that
    /// would make up for it read more pages (docs/decisions/0018).
    pub fn stop_by_distance(self: *Search) void {
        const parameters = &self.parameters;
        if (!parameters.stops or self.query.form != .distance or self.shared.reader.page_ways != null) return;
        const k = @min(self.list.limit, @max(parameters.k, parameters_file.stop_k_least));
        self.list.stop = .{
            .k = k,
            .followed = @max(k, parameters_file.followed_least(parameters.list_size)),
            .share = parameters_file.share_followed(parameters.list_size),
        };
    }

    /// The only way from one state into another.
    pub fn change(self: *Search, next: State) void {
        assert(State.leads_to(self.state, next));
        if (next != .idle) if (self.pending()) |own| assert(own.len == 0);
        const plan = self.shared.plan;
        switch (next) {
            .idle => {},
            .graph => assert(plan == .links_in_memory),
            .gated => assert(plan == .links_in_memory and self.request.filter != null),
            .scan => assert(self.round.awaited == 0),
            .ranked => assert(plan == .pages),
            .disk => assert(plan == .links_on_disk),
            .drain => assert(plan == .links_on_disk and self.round.awaited > 0 and !self.parameters.exact),
            .coded, .rescore, .every => assert(self.parameters.exact and self.round.awaited == 0 and self.round.count == 0),
            .done => |distances| assert(self.round.awaited == 0 and (distances == .exact) == self.parameters.exact),
        }
        if (self.state == .disk) for (self.state.disk.recent.slice()) |page| self.released.add(page.buffer);
        self.state = next;
    }

    /// The query is over, whatever came of it; its results and its cost stand until the next one starts.
    pub fn end(self: *Search) void {
        self.change(.idle);
    }

    /// A query outside the rows has its nearest at the rim, all about as far: a graph of rows does not lead there, and no
    /// calibration knows such queries. Who names a list gets that list.
    pub fn is_remote(self: *const Search) bool {
        return self.parameters.recall > 0 and self.lies_outside();
    }

    fn lies_outside(self: *const Search) bool {
        return self.query.norm2 > self.shared.reader.header.remote_norm2;
    }

    /// Whether the distances of the results are final, as users see them.
    pub fn is_exact(self: *const Search) bool {
        return switch (self.state) {
            .done => |distances| distances == .exact,
            else => false,
        };
    }

    /// Which file's pages are wanted.
    pub fn file(self: *const Search) File {
        return switch (self.state) {
            .rescore, .every => .vectors,
            else => .pages,
        };
    }

    /// What may be an answer by its estimate, the nearest first; none where a filter has not been asked yet, and of pages.
    pub fn candidates(self: *const Search) []const lists.Candidate {
        return if (self.asks_late() or self.shared.plan == .pages) &.{} else self.list.slice();
    }

    /// Which of the candidates pass is asked when their pages are there.
    fn asks_late(self: *const Search) bool {
        return self.request.filter != null and switch (self.state) {
            .graph, .disk => true,
            else => false,
        };
    }

    /// Whether nothing of pages.bin is wanted any more.
    pub fn has_coded(self: *const Search) bool {
        return switch (self.state) {
            .coded, .rescore, .every, .drain, .done => true,
            else => false,
        };
    }

    /// What waits to enter the list, where there is still something to navigate to.
    pub inline fn pending(self: *Search) ?*Pending {
        return switch (self.state) {
            inline .graph, .gated, .disk => |*own| &own.pending,
            else => null,
        };
    }

    /// A vertex with its estimated distance, perhaps for the first time.
    pub inline fn meet(self: *Search, vertex: u32, distance: f32) void {
        if (self.visited.insert(vertex)) self.offer(vertex, distance);
    }

    /// Into the list if it may be an answer.
    inline fn offer(self: *Search, vertex: u32, distance: f32) void {
        if (self.state == .gated) return filtered.offer(self, vertex, distance);
        _ = self.list.insert(vertex, distance);
    }

    /// Estimates and offers those of `ids` that were not met before.
    pub fn follow(self: *Search, ids: []const u32) void {
        const codes = &self.shared.reader.codes;
        const count = self.visited.insert_new(ids, &self.fresh);
        if (count == 0) return;
        codes.prefetch(self.fresh[0..count]);
        self.query.estimate_asked(codes, self.fresh[0..count], count, self.distances[0..count]);
        self.cost.estimates += count;
        for (self.fresh[0..count], self.distances[0..count]) |id, distance| self.offer(id, distance);
    }

    /// What precedes the choice of pages, for who is told of a bound before that.
    pub fn navigate(self: *Search) PageError!void {
        self.round.begin();
        self.take_pending();
        switch (self.state) {
            .graph => try navigation.navigate(self),
            .gated => try filtered.navigate(self),
            else => {},
        }
    }

    /// Runs until pages are needed.
    pub fn step(self: *Search) PageError!Want {
        self.round.begin();
        self.take_pending();
        const want: Want = switch (self.state) {
            .graph, .gated, .scan => if ((try self.step_in_memory()) == .done) self.end_codes() else .pages,
            .ranked => if (ranked.step(self) == .done) self.end_codes() else .pages,
            .disk => if ((try on_disk.step(self)) == .done) self.end_codes() else .pages,
            .rescore => if (self.round.awaited > 0) .pages else rescoring.step(self),
            .every => if (self.round.awaited > 0) .pages else every.step(self),
            .idle, .drain, .coded, .done => unreachable,
        };
        assert((want == .done) == (self.state == .done or self.state == .drain));
        assert(want == .done or self.round.awaited > 0 or self.state == .coded or self.told_estimates);
        return want;
    }

    fn step_in_memory(self: *Search) PageError!Want {
        switch (self.state) {
            .graph => try navigation.navigate(self),
            .gated => try filtered.navigate(self),
            .scan => {},
            else => unreachable,
        }
        self.choose_pages();
        if (self.round.count == 0) return .done;
        self.cost.rounds += 1;
        return .pages;
    }

    /// Codes want nothing more.
    fn end_codes(self: *Search) Want {
        assert(self.round.count == 0);
        if (self.told_estimates) return .pages;
        const exact = self.parameters.exact;
        // Links on disk: what is on its way may still be among the answers.
        if (exact and self.round.awaited > 0) return .pages;
        if (self.parameters.count_used) self.count_used();
        if (exact) {
            if (self.request.company != .none) {
                self.change(.coded);
                return .pages;
            }
            rescoring.begin(self);
            return rescoring.step(self);
        }
        self.change(if (self.round.awaited > 0) .drain else .{ .done = .estimated });
        return .done;
    }

    pub fn take_pending(self: *Search) void {
        const own = self.pending() orelse return;
        for (own.take()) |found| self.meet(found.vertex, found.distance);
    }

    /// The pages of all candidates whose lower bound reaches the k-th best known so far.
    fn choose_pages(self: *Search) void {
        const reader = self.shared.reader;
        const k = self.parameters.k;
        const estimated = self.candidates();
        // Full distances as soon as there are k of them; before that the k-th estimate.
        const own = if (self.results.len >= k)
            self.results.bound()
        else if (estimated.len >= k)
            estimated[k - 1].distance()
        else
            std.math.inf(f32);
        const reach = @min(own, self.told);
        const listed = self.list.slice();
        var at: u32 = 0;
        while (at < listed.len) : (at += bounded_together) {
            var within = self.within_reach(listed[at..], reach);
            while (within != 0) : (within &= within - 1) {
                const vertex = listed[at + @ctz(within)].vertex();
                const page = reader.directory.page_of(vertex);
                if (self.pages.contains(page)) continue;
                if (cached.answer(self, vertex)) continue;
                if (!self.pages.insert(page)) continue;
                self.round.add(page);
                if (self.round.count == self.parameters.burst_max) return;
            }
        }
    }

    /// Candidates whose bounds are found together.
    const bounded_together = 8;

    /// Of the first few candidates a bit for each whose lower bound reaches as far.
    inline fn within_reach(self: *const Search, some: []const lists.Candidate, reach: f32) u32 {
        @setRuntimeSafety(builtin.mode == .Debug); // measured (decisions/0007)
        const F = @Vector(bounded_together, f32);
        var ids: [bounded_together]u32 = undefined;
        var distances: [bounded_together]f32 = undefined;
        for (&ids, &distances, 0..) |*id, *distance, i| {
            const candidate = some[@min(i, some.len - 1)];
            id.* = candidate.vertex();
            distance.* = candidate.distance();
        }
        const near: F = distances;
        const sigmas = self.query.sigmas_upper(&self.shared.reader.codes, bounded_together, &ids, near);
        // What is no number reaches, too.
        const beyond: u8 = @bitCast(near - @as(F, @splat(self.parameters.sigma)) * sigmas > @as(F, @splat(reach)));
        const there = (@as(u32, 1) << @intCast(@min(some.len, bounded_together))) - 1;
        return ~@as(u32, beyond) & there;
    }

    /// A page that was wanted has arrived, in the given buffer, and is whole.
    pub fn on_page(self: *Search, page_number: u32, view: *const layout.page.View, buffer: u32) PageError!Fate {
        assert(self.file() == .pages);
        self.round.arrive();
        const reader = self.shared.reader;
        const count = view.record_count;
        const full = self.distances[0..count];
        self.query.estimate_page(reader.uppers(view), count, view.lower, view.offsets, view.ratios, full);
        self.cost.records_scored += count;
        const reach = self.list.bound();
        const filter = self.request.filter;
        const newcomers = self.pending();
        // A record may come from the cache and with its page, or with a page that is read again.
        const comes_twice = self.shared.plan == .links_on_disk;
        var within: Within = .{ .distances = &self.distances, .count = count, .bound = @max(reach, self.results.reach()) };
        while (within.next()) |i| {
            const distance = full[i];
            const vertex = view.first_vertex + i;
            const near = distance <= self.results.reach();
            if (!near and !(distance < reach)) continue;
            if (vertex == self.request.excluded) continue;
            if (near) {
                const passes = if (filter) |one| one.passes(vertex) else true;
                if (passes) _ = if (comes_twice) self.results.insert_once(vertex, distance) else self.results.insert(vertex, distance);
            }
            if (newcomers) |own| if (distance < reach) own.add(vertex, distance);
        }
        if (self.shared.cache) |cache| try cached.keep(self, cache, view, full);
        return switch (self.state) {
            .disk => |*walk| walk.hold(self, .{ .number = page_number, .buffer = buffer, .view = view.* }),
            .drain => self.on_drain(),
            else => .free,
        };
    }

    fn on_drain(self: *Search) Fate {
        if (self.round.awaited == 0) self.change(.{ .done = .estimated });
        return .free;
    }

    /// The same for a page of vectors.
    pub fn on_vectors(self: *Search, page_number: u32, page: []const u8) void {
        self.round.arrive();
        switch (self.state) {
            .rescore => rescoring.on_page(self, page_number, page),
            .every => every.on_page(self, page_number, page),
            else => unreachable,
        }
    }

    fn count_used(self: *Search) void {
        const directory = &self.shared.reader.directory;
        // There the list holds pages.
        if (self.shared.plan == .pages) self.cost.records_used = self.results.len else for (self.list.slice()) |candidate| {
            if (self.pages.contains(directory.page_of(candidate.vertex()))) self.cost.records_used += 1;
        }
    }
};

/// The places of distances that are not above a bound.
const Within = struct {
    distances: *const [Search.fresh_max]f32,
    count: u32,
    bound: f32,
    /// Places before this one were looked at; a bit for each of the last few that is still to come.
    at: u32 = 0,
    left: Bits = 0,

    const together = 8;
    const Bits = std.meta.Int(.unsigned, together);

    comptime {
        assert(Search.fresh_max % together == 0);
    }

    inline fn next(self: *Within) ?u32 {
        @setRuntimeSafety(builtin.mode == .Debug); // measured (decisions/0007)
        while (self.left == 0) {
            if (self.at >= self.count) return null;
            const some: @Vector(together, f32) = self.distances[self.at..][0..together].*;
            const number = std.simd.iota(u32, together) + @as(@Vector(together, u32), @splat(self.at));
            const there = number < @as(@Vector(together, u32), @splat(self.count));
            self.left = @bitCast((some <= @as(@Vector(together, f32), @splat(self.bound))) & there);
            self.at += together;
        }
        const place = self.at - together + @ctz(self.left);
        self.left &= self.left - 1;
        return place;
    }
};

test "every state is reached from idle, and a search may end in any" {
    const tags = std.enums.values(State.Tag);
    var reached: std.EnumSet(State.Tag) = .initOne(.idle);
    for (tags) |_| for (tags) |from| for (tags) |to| {
        if (reached.contains(from) and State.leads_to(from, to)) reached.insert(to);
    };
    try std.testing.expectEqual(tags.len, reached.count());
    for (tags) |from| {
        try std.testing.expect(State.leads_to(from, .idle));
        // What was left is not come back to.
        for (tags) |to| if (from != .idle and to != .idle and State.leads_to(from, to)) try std.testing.expect(!State.leads_to(to, from));
    }
    try std.testing.expect(!State.leads_to(.idle, .drain) and !State.leads_to(.done, .rescore));
}
