//! One query as a state machine. It never blocks and never reads: `step` says which pages it wants, and each page is
//! handed to it as it arrives.
//!
//!   idle ──▶ graph ──────────┐
//!     ├────▶ filtered ▶ scan ┤
//!     ├────▶ scan ───────────┼──▶ rescore ──┐
//!     ├────▶ walk ───────────┤              │
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
//!   filtered The same with a filter in front of the list. Where that turns out dearer it becomes a scan.
//!   scan     The codes of all that may be answers were looked at: there is nothing to navigate to.
//!   walk     Follows tables of neighbors from page to page, and goes on with whatever arrives (walk.zig).
//!   disk     Follows links on disk, and goes on with whatever pages are there.
//!   drain    Links on disk, nothing more is wanted: what is on its way may still be among the answers.
//!   rescore  The best by codes are scored from the stored vectors (rescoring.zig).
//!   every    All stored vectors are looked at (rescoring.zig).
//!   done     The results stand.
//!
//! Data of one state are in it and go with it. States point at the search's room, which is allocated once.
const std = @import("std");
const builtin = @import("builtin");
const base = @import("base");
const layout = @import("layout");
const quant = @import("quant");
const filter_room = @import("filter");
const index = @import("index");
const cache_room = @import("cache");
const Cost = @import("cost.zig").Cost;
const lists = @import("list.zig");
const rescoring = @import("rescoring.zig");
const parameters_file = @import("parameters.zig");
const pages_file = @import("pages.zig");
const shared_file = @import("shared.zig");
const filter_plan = @import("filter_plan.zig");
const walk_file = @import("walk.zig");
const Navigated = @import("job.zig").Navigated;
const Shared = shared_file.Shared;
const File = shared_file.File;
const Pending = pages_file.Pending;
const PageSet = pages_file.PageSet;
const Round = pages_file.Round;
const RecentPages = pages_file.RecentPages;
const Parameters = parameters_file.Parameters;
const assert = std.debug.assert;
const estimated_together = lists.List.insert_max;

pub const PageError = layout.page.Corrupt || error{BadList};

/// pages: go on when the pages wanted (and those on their way) have arrived; done: nothing more is wanted.
pub const Want = enum { pages, done };

/// The fate of the buffer of a page that has arrived.
pub const Fate = union(enum) {
    /// Nothing in it is needed any more.
    free,
    /// It stays with the query, which releases it.
    hold,
    /// It stays, and another one that the query held is free.
    exchange: u32,
};

/// The request of a query; it is valid until the search ends.
pub const Request = struct {
    vector: []const u8,
    dtype: index.Dtype,
    parameters: Parameters,
    filter: ?*const filter_room.Filter = null,
    /// Taken as absent: a query that is itself a row of the index looks for its other neighbors (calibration).
    excluded: u32 = excluded_none,
    /// Searches of other segments answer the same query (segments.zig).
    role: Role = .none,
    /// Of the rows of all segments.
    share: f32 = 1,
    held_max: u32 = RecentPages.max,
    /// The list that navigation would end with, from elsewhere (job.Navigated).
    navigated: ?Navigated.List = null,

    pub const Role = enum {
        none,
        /// Of all segments this one has the most rows.
        largest,
        smaller,
    };

    pub const excluded_none = std.math.maxInt(u32);
};

/// Links in memory, without a filter in front of the list.
pub const Graph = struct { pending: Pending };

/// The kind of the distances in the results.
pub const Distances = enum { estimated, exact };

pub const State = union(enum) {
    idle,
    graph: Graph,
    filtered: FilteredTraversal,
    scan,
    walk: walk_file.Walk,
    disk: OnDisk,
    drain,
    /// All codes of this segment are evaluated; those of other segments are not yet.
    coded,
    rescore: rescoring.Rescoring,
    every: rescoring.Every,
    done: Distances,

    const Tag = std.meta.Tag(State);

    /// The arrows of the drawing; a search may end in any state.
    fn leads_to(from: Tag, to: Tag) bool {
        return to == .idle or switch (from) {
            .idle => switch (to) {
                .graph, .filtered, .scan, .walk, .disk, .every => true,
                else => false,
            },
            .graph => to == .coded or to == .rescore or to == .done,
            .filtered => to == .scan or to == .coded or to == .rescore or to == .done,
            .walk => to == .coded or to == .rescore or to == .done,
            .scan, .disk => to == .coded or to == .rescore or to == .drain or to == .done,
            .coded => to == .rescore,
            .drain, .rescore, .every => to == .done,
            .done => false,
        };
    }
};

/// Memory that states point at.
const Room = struct {
    pending: []lists.Found,
    traversal: TraversalMemory,
    recent: []pages_file.Page,
    /// Of the plan `walk` alone.
    walk: ?walk_file.Room,
    rescoring: rescoring.Room,

    fn init(allocator: std.mem.Allocator, shared: *const Shared) error{OutOfMemory}!Room {
        const pending = try base.alloc_untouched(allocator, lists.Found, Pending.max);
        errdefer base.free_untouched(allocator, pending);
        var traversal = try TraversalMemory.init(allocator);
        errdefer traversal.deinit(allocator);
        const recent = try base.alloc_untouched(allocator, pages_file.Page, if (shared.plan == .links_on_disk) RecentPages.max else 0);
        errdefer base.free_untouched(allocator, recent);
        var walk: ?walk_file.Room = if (shared.plan == .walk) try .init(allocator, shared.reader) else null;
        errdefer if (walk) |*own| own.deinit(allocator);
        return .{ .pending = pending, .traversal = traversal, .recent = recent, .walk = walk, .rescoring = try .init(allocator, shared.reader) };
    }

    fn deinit(self: *Room, allocator: std.mem.Allocator) void {
        base.free_untouched(allocator, self.pending);
        self.traversal.deinit(allocator);
        base.free_untouched(allocator, self.recent);
        if (self.walk) |*own| own.deinit(allocator);
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
    /// The k-th best that all segments know, and the same of upper bounds of distances; infinity where it is alone.
    reported: f32 = std.math.inf(f32),
    /// `reported` is an estimate: the full distance in its place may be larger, so nothing ends by it.
    reported_is_estimate: bool = false,
    reported_upper: f64 = std.math.inf(f64),
    /// The last of the nearest candidates of all segments that walk, as many as one list holds; infinity where it is alone.
    listed: f32 = std.math.inf(f32),
    /// Beside a larger segment: where a walk may end early.
    beside: ?Beside = null,
    /// No code was estimated yet, see `begin_late_scan`.
    scans_late: bool = false,
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
    /// Pages whose codes were looked at, and stretches whose lists, where links are shared.
    followed: PageSet,
    /// Links on disk: vertices whose records came from the cache.
    from_cache: PageSet,
    released: pages_file.Released = .{},
    cost: Cost = .{},

    neighbors: [layout.adjacency.neighbors_max]u32 = undefined,
    fresh: [fresh_max]u32 = undefined,
    distances: [fresh_max]f32 = undefined,

    pub const fresh_max = 512;
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
        self.reported = std.math.inf(f32);
        self.reported_is_estimate = false;
        self.reported_upper = std.math.inf(f64);
        self.listed = std.math.inf(f32);
        self.beside = null;
        self.scans_late = false;
        prepare(reader, request.dtype, request.vector, self.row, self.rotated, &self.query);
        self.list.reset(parameters.list_size);
        self.results.reset(parameters.k, if (parameters.exact) rescoring.spare else 0);
        self.visited.reset(parameters.list_size * met_per_entry(self.shared.plan) + 256);
        // As if met before: it enters no list, and so is not followed either.
        if (request.excluded != Request.excluded_none) _ = self.visited.insert(request.excluded);
        self.pages.reset();
        self.followed.reset();
        self.from_cache.reset();
        self.round.reset();
        self.cost = .{ .outside = @intFromBool(self.lies_outside()) };
        if (parameters.every and parameters.exact) return self.begin_every();
        if (self.shared.plan == .walk) return walk_file.begin(self);
        if (request.filter) |filter| return begin_filtered(self, filter);
        if (parameters.scan or self.is_remote()) return begin_scan(self);
        if (is_scan_cheaper(self)) return scan_beside(self);
        if (request.role == .smaller and self.shared.blocks != null) return self.begin_late_scan();
        if (request.role == .smaller and looks_at_all(self.shared)) return look_at_all(self);
        self.begin_graph();
    }

    /// Vertices that a search meets, about, for each entry of its list. A table of neighbors holds some 130.
    fn met_per_entry(plan: shared_file.Plan) u32 {
        return if (plan == .walk) 64 else 12;
    }

    /// Whether a search beside a larger segment estimates all codes of this one.
    pub fn looks_at_all(shared: *const Shared) bool {
        return shared.blocks != null or (shared.plan == .links_in_memory and shared.reader.n() <= shared_file.rows_looked_at);
    }

    /// A scan that waits for what the larger segment finds: few of its codes are near enough then to enter the list.
    fn begin_late_scan(self: *Search) void {
        self.change(.scan);
        self.scans_late = true;
    }

    fn scan_late(self: *Search) void {
        if (!self.scans_late) return;
        self.scans_late = false;
        estimate_all(self);
    }

    fn begin_graph(self: *Search) void {
        const newcomers: Pending = .{ .items = self.room.pending };
        self.change(switch (self.shared.plan) {
            .links_in_memory => .{ .graph = .{ .pending = newcomers } },
            .links_on_disk => .{ .disk = .{ .pending = newcomers, .recent = .{ .slots = self.room.recent[0..self.request.held_max] } } },
            .walk => unreachable, // `start` begins it
        });
        if (self.shared.plan == .links_in_memory and self.request.filter == null) self.stop_by_distance();
        if (self.request.navigated) |found| if (self.state == .graph and self.take_navigated(found)) return;
        enter_graph(self);
    }

    fn stop_by_distance(self: *Search) void {
        self.list.stop = stop_of(self.shared, &self.parameters, self.list.limit);
    }

    /// Takes a list over as if this search had navigated; behind a filter only candidates that pass. Candidates that are
    /// near and not followed yet are followed next. False, without a change, if the list is not valid: it comes from another device.
    fn take_navigated(self: *Search, found: Navigated.List) bool {
        var last: i64 = std.math.minInt(i64);
        for (found.candidates) |candidate| {
            const key = candidate.key | 1;
            if (key <= last or candidate.vertex() >= self.shared.reader.n() or !std.math.isFinite(candidate.distance())) {
                _ = found.refused.fetchAdd(1, .monotonic);
                return false;
            }
            last = key;
        }
        const gate = if (self.state == .filtered) self.request.filter else null;
        const list = &self.list;
        var len: u32 = 0;
        for (found.candidates) |candidate| {
            if (gate) |filter| if (!filter.passes(candidate.vertex())) continue;
            list.items[len] = candidate;
            len += 1;
            if (len == list.limit) break;
        }
        if (len == 0 or (gate != null and len < @min(self.parameters.k, list.limit))) {
            @memset(list.items[0..len], .none);
            return false;
        }
        list.len = len;
        for (found.candidates) |candidate| _ = self.visited.insert(candidate.vertex());
        self.cost.estimates += found.counters.estimates;
        self.cost.expanded += found.counters.expanded;
        return true;
    }

    /// The only way from one state into another.
    pub fn change(self: *Search, next: State) void {
        assert(State.leads_to(self.state, next));
        if (next != .idle) if (self.pending()) |own| assert(own.len == 0);
        const plan = self.shared.plan;
        switch (next) {
            .idle => {},
            .graph => assert(plan == .links_in_memory),
            .filtered => assert(plan == .links_in_memory and self.request.filter != null),
            .scan => assert(self.round.awaited == 0),
            .walk => assert(plan == .walk),
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

    /// Memory that the last query used, about, of arrays made for the largest one.
    pub fn touched_bytes(self: *const Search) usize {
        var bytes = self.visited.touched_bytes() + self.pages.touched_bytes() + self.followed.touched_bytes() + self.from_cache.touched_bytes();
        bytes += @sizeOf(lists.Candidate) * @as(usize, self.list.limit) + @sizeOf(lists.Found) * @as(usize, self.results.limit);
        if (self.room.walk) |*own| bytes += @sizeOf(lists.Candidate) * @as(usize, own.seeds.limit + own.leading.limit);
        bytes += self.room.rescoring.touched_bytes(self.results.limit);
        return bytes;
    }

    /// A query outside the rows has its nearest at the rim, all about as far: a graph of rows does not lead there, and no
    /// calibration knows such queries. Who names a list gets that list.
    fn is_remote(self: *const Search) bool {
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

    /// Possible answers by their estimates, the nearest first; none before a filter was asked, and none of a walk, whose
    /// estimates are of other codes.
    pub fn candidates(self: *const Search) []const lists.Candidate {
        return if (self.asks_late() or self.shared.plan == .walk) &.{} else self.list.slice();
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

    /// Records that wait to enter the list, in states that still navigate.
    pub inline fn pending(self: *Search) ?*Pending {
        return switch (self.state) {
            inline .graph, .filtered, .disk => |*own| &own.pending,
            else => null,
        };
    }

    /// A vertex with its estimated distance, perhaps for the first time.
    pub inline fn meet(self: *Search, vertex: u32, distance: f32) void {
        if (self.visited.insert(vertex)) self.offer(vertex, distance);
    }

    /// Into the list if it may be an answer.
    inline fn offer(self: *Search, vertex: u32, distance: f32) void {
        if (self.state == .filtered) return offer_filtered(self, vertex, distance);
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

    /// Runs navigation before the choice of pages, so that a bound of other segments can be applied in between.
    pub fn navigate(self: *Search) PageError!void {
        self.round.begin();
        self.take_pending();
        switch (self.state) {
            .graph => try navigate_plain(self),
            .filtered => try navigate_filtered(self),
            .scan => self.scan_late(),
            else => {},
        }
    }

    /// Runs until pages are needed.
    pub fn step(self: *Search) PageError!Want {
        self.round.begin();
        self.take_pending();
        const want: Want = switch (self.state) {
            .graph, .filtered, .scan => if ((try self.step_in_memory()) == .done) self.end_codes() else .pages,
            .walk => if (walk_file.step(self) == .done) self.end_codes() else .pages,
            .disk => if ((try step_on_disk(self)) == .done) self.end_codes() else .pages,
            .rescore => if (self.round.awaited > 0) .pages else self.step_rescoring(),
            .every => if (self.round.awaited > 0) .pages else self.step_every(),
            .idle, .drain, .coded, .done => unreachable,
        };
        assert((want == .done) == (self.state == .done or self.state == .drain));
        assert(want == .done or self.round.awaited > 0 or self.state == .coded or self.reported_is_estimate);
        return want;
    }

    fn step_in_memory(self: *Search) PageError!Want {
        switch (self.state) {
            .graph => try navigate_plain(self),
            .filtered => try navigate_filtered(self),
            .scan => self.scan_late(),
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
        if (self.reported_is_estimate) return .pages;
        const exact = self.parameters.exact;
        // Links on disk: what is on its way may still be among the answers.
        if (exact and self.round.awaited > 0) return .pages;
        if (self.parameters.count_used) self.count_used();
        if (exact) {
            if (self.request.role != .none) {
                self.change(.coded);
                return .pages;
            }
            self.begin_rescoring();
            return self.step_rescoring();
        }
        self.change(if (self.round.awaited > 0) .drain else .{ .done = .estimated });
        return .done;
    }

    fn take_pending(self: *Search) void {
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
        const reach = @min(own, self.reported);
        const listed = self.list.slice();
        var at: u32 = 0;
        while (at < listed.len) : (at += bounded_together) {
            var within = self.within_reach(listed[at..], reach);
            while (within != 0) : (within &= within - 1) {
                const vertex = listed[at + @ctz(within)].vertex();
                const page = reader.directory.page_of(vertex);
                if (self.pages.contains(page)) continue;
                if (answer_from_cache(self, vertex)) continue;
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
        // A distance that is not a number reaches, too.
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
        if (self.shared.cache) |cache| try keep_records(self, cache, view, full);
        return switch (self.state) {
            .disk => |*own| own.hold(self, .{ .number = page_number, .buffer = buffer, .view = view.* }),
            .walk => blk: {
                try walk_file.on_page(self, page_number, view, full);
                break :blk .free;
            },
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
            .rescore => |*own| own.on_page(self.shared.reader, self.row, page_number, page),
            .every => |*own| {
                const request = &self.request;
                self.cost.records_scored += own.on_page(self.shared.reader, self.row, request.filter, request.excluded, self.parameters.k, page_number, page);
            },
            else => unreachable,
        }
    }

    /// Codes are final; nothing of pages.bin is looked at any more.
    pub fn begin_rescoring(self: *Search) void {
        const room = &self.room.rescoring;
        self.change(.{ .rescore = .init(room, self.no_neighbors(), &self.query, self.shared.reader, self.results.slice()) });
    }

    fn begin_every(self: *Search) void {
        self.change(.{ .every = .{ .neighbors = self.no_neighbors() } });
    }

    /// The page cache had all that was wanted. A walk counts rounds by its reads.
    pub fn end_round_without_reads(self: *Search) void {
        if (self.state != .walk) self.cost.rounds -|= 1;
    }

    /// Puts the query as it was given in place of what was made of it for codes.
    fn no_neighbors(self: *Search) rescoring.Neighbors {
        index.space.convert(self.request.dtype, self.request.vector, self.row);
        return .init(&self.room.rescoring, quant.exact.sum_squares(self.row));
    }

    fn step_rescoring(self: *Search) Want {
        const own = &self.state.rescore;
        own.choose(self.shared.reader, self.parameters.k, self.reported_upper, self.parameters.burst_max, &self.round);
        return self.want_vectors(&own.neighbors);
    }

    fn step_every(self: *Search) Want {
        const own = &self.state.every;
        own.choose(self.shared.reader, self.request.filter, self.parameters.burst_max, &self.round);
        return self.want_vectors(&own.neighbors);
    }

    /// Waits for the pages that were chosen; where none was, the search is done.
    fn want_vectors(self: *Search, neighbors: *const rescoring.Neighbors) Want {
        if (self.round.count > 0) {
            self.cost.rounds += 1;
            return .pages;
        }
        neighbors.finish(self.parameters.k, &self.results);
        self.change(.{ .done = .exact });
        return .done;
    }

    /// Upper bounds of what a search may answer, in order; good until its next step.
    pub fn uppers(self: *const Search) []const f64 {
        return switch (self.state) {
            .rescore => |*own| own.sorted_uppers(),
            else => &.{},
        };
    }

    fn count_used(self: *Search) void {
        const directory = &self.shared.reader.directory;
        // Without tables there is no list.
        if (self.shared.plan == .walk) self.cost.records_used = self.results.len else for (self.list.slice()) |candidate| {
            if (self.pages.contains(directory.page_of(candidate.vertex()))) self.cost.records_used += 1;
        }
    }
};

/// Ways from vertices that are much farther than the k-th nearest hardly ever lead to anything nearer than it. Not for
/// products, which are no distances; nor where links are shared, for these lead less straight, and the longer lists that
/// would make up for it read more pages (docs/decisions/0018).
pub fn stop_of(shared: *const Shared, parameters: *const Parameters, limit: u32) lists.List.Stop {
    const reader = shared.reader;
    if (!parameters.stops or reader.codes.form != .distance or reader.block_adjacency != null) return .never;
    const k = @min(limit, @max(parameters.k, parameters_file.stop_k_least));
    return .{
        .k = k,
        .followed = @max(k, parameters_file.followed_least(parameters.list_size)),
        .share = parameters_file.share_followed(parameters.list_size),
    };
}

/// Puts a query as it is given into the space of codes and prepares it for their estimates.
pub fn prepare(reader: *const index.Reader, dtype: index.Dtype, vector: []const u8, row: []f32, rotated: []f32, query: *quant.Query) void {
    index.space.convert(dtype, vector, row);
    index.space.place(reader.metric, row);
    for (row, reader.mean) |*value, mean| value.* -= mean;
    reader.rotation.apply(row, rotated);
    query.prepare(rotated);
}

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

// ---- where a search of the graph begins ----
//
// At the medoid, and at the best of the entry points near the query.

/// Entry points that a search starts at.
const best_max = 8;
const centers_looked_max = 64;
/// The entry points of a search are divided among segments by their rows; each segment has at least so many.
const entries_least = 64;

fn enter_graph(search: *Search) void {
    const shared = search.shared;
    var centers: shared_file.Centers = .init(shared.center_norms2, &search.query.terms);
    var looked: u32 = 0;
    const most = @max(entries_least, @as(u32, @intFromFloat(search.request.share * shared_file.entries_looked)));
    var best: Best = .init(search.list.kernels);
    for (0..centers_looked_max) |_| {
        if (looked >= most) break;
        const center = centers.next() orelse break;
        const at = shared.entry_starts[center];
        const end = shared.entry_starts[center + 1];
        looked += end - at;
        best.add(search, shared.entry_places[at..end]);
    }
    best.look(search);
    search.cost.estimates += looked;
    for (best.slice()) |candidate| search.meet(shared.entries[candidate.vertex()], candidate.distance());
    if (search.state == .disk) look_around_entries(search, best.slice());
    const medoid = [1]u32{shared.reader.header.entry_vertex};
    search.query.estimate(&shared.reader.codes, &medoid, search.distances[0..1]);
    search.meet(medoid[0], search.distances[0]);
}

/// The nearest entries, by their places. What is to be looked at gathers in the search's room, so that a kernel sees much at once.
const Best = struct {
    kernels: *const quant.Kernels,
    candidates: [best_max + quant.list_padding]lists.Candidate = @splat(.none),
    len: u32 = 0,
    waiting: u32 = 0,

    fn init(kernels: *const quant.Kernels) Best {
        return .{ .kernels = kernels };
    }

    fn add(best: *Best, search: *Search, places: []const u32) void {
        var rest = places;
        while (rest.len > 0) {
            const count: u32 = @intCast(@min(rest.len, Search.fresh_max - best.waiting));
            @memcpy(search.fresh[best.waiting..][0..count], rest[0..count]);
            best.waiting += count;
            rest = rest[count..];
            if (best.waiting == Search.fresh_max) best.look(search);
        }
    }

    fn look(best: *Best, search: *Search) void {
        const count = best.waiting;
        best.waiting = 0;
        search.query.estimate(&search.shared.entry_codes, search.fresh[0..count], search.distances[0..count]);
        var at: u32 = 0;
        while (at < count) : (at += together) {
            @setRuntimeSafety(builtin.mode == .Debug); // measured (decisions/0007)
            var inserted: quant.Inserted = undefined;
            best.kernels.insert_nearest(&best.candidates, best.len, best_max, std.math.inf(f32), search.fresh[at..].ptr, search.distances[at..].ptr, @min(together, count - at), &inserted);
            best.len = inserted.len;
        }
    }

    fn slice(best: *const Best) []const lists.Candidate {
        return best.candidates[0..best.len];
    }

    const together = quant.inserted_max;

    comptime {
        std.debug.assert(Search.fresh_max % together == 0);
    }
};

// ---- navigation with links in memory ----
//
// A pipeline, so that memory and arithmetic overlap. The links of chosen vertices are on
// their way while others are decoded; the codes of neighbors are on their way while those before them are estimated. So a
// vertex is chosen a few steps before all that precedes it is known, which costs little: whatever stands in the list is
// followed in the end.
//
//   list ──▶ chosen ──▶ decoded: met for the first time? ──▶ fresh ──▶ estimated ──▶ list
//            (links asked for)                     (codes asked for)
//
// A policy, `Plain` or `Filtered`, chooses the vertices to follow, the vertices to estimate and the place of each.

/// Neighbors met ahead of estimation; as many codes are on their way.
const met_ahead = 32;
/// Vertices whose links are on their way.
const chosen_ahead = 3;

/// Beside a larger segment most queries have few answers or none. There it is enough to come as near as the way goes: what
/// leads nearer is followed, and what may lie before the k-th nearest.
pub const Beside = struct {
    /// The k-th nearest by estimates of all segments.
    reach: f32,
    /// So many of the list are followed without coming nearer.
    patience: u32,
    nearest: f32 = std.math.inf(f32),
    /// Followed since the nearest was found.
    since: u32 = 0,

    /// `rows` of the segment; the larger one has `most`. A segment as large holds as many answers, and ends no earlier.
    pub fn init(reach: f32, list_size: u32, rows: u32, most: u32) Beside {
        const share = 2 * @as(f32, @floatFromInt(rows)) / @as(f32, @floatFromInt(most));
        return .{ .reach = reach, .patience = @intFromFloat(@as(f32, @floatFromInt(list_size)) * std.math.clamp(share, 0.25, 1)) };
    }

    fn has_come_near(self: *Beside, search: *const Search, next: lists.Candidate) bool {
        const nearest = search.list.items[0].distance();
        if (nearest < self.nearest) {
            self.nearest = nearest;
            self.since = 0;
        }
        self.since += 1;
        if (self.since <= self.patience) return false;
        const distance = next.distance();
        const sigma = search.query.sigma_upper(&search.shared.reader.codes, next.vertex(), distance);
        return distance - search.parameters.sigma * sigma > self.reach;
    }
};

/// Every vertex may be a candidate.
const Plain = struct {
    /// Vertices that one step adds to `fresh` beside neighbors.
    const added_max = 0;

    /// The vertex to follow next.
    pub inline fn choose(_: *Plain, search: *Search) ?u32 {
        const place = search.list.nearest_unexpanded() orelse return null;
        if (search.beside) |*beside| if (beside.has_come_near(search, search.list.items[place])) return null;
        search.list.mark_expanded(place);
        return search.list.items[place].vertex();
    }

    /// `vertex` was followed, `fresh[at..][0..met]` were met: how many from there on are to be estimated. Null ends
    /// navigation.
    pub inline fn keep(_: *Plain, _: *Search, _: u32, _: u32, met: u32) ?u32 {
        return met;
    }

    /// The vertices from `fresh[at]` on with their distances: a bit for each that may be followed.
    pub inline fn offer(_: *Plain, search: *Search, at: u32, count: u32) u32 {
        return search.list.insert_many(search.fresh[at..][0..estimated_together], search.distances[0..estimated_together], count);
    }

    /// `fresh[head..tail]` moved to the front.
    pub inline fn move(_: *Plain, _: u32, _: u32) void {}
};

/// Best first, until every candidate was followed that is near enough (`lists.List.Stop`).
fn navigate_plain(search: *Search) PageError!void {
    assert(search.state == .graph);
    var plain: Plain = .{};
    return navigate_by(search, &plain);
}

/// Until the policy chooses nothing any more.
fn navigate_by(search: *Search, policy: anytype) PageError!void {
    const Policy = @typeInfo(@TypeOf(policy)).pointer.child;
    comptime {
        // Vertices met ahead, and those that one more step adds.
        assert(Search.fresh_max >= Search.fresh_max / 4 + met_ahead + layout.adjacency.neighbors_max + Policy.added_max + estimated_together);
    }
    if (search.shared.reader.block_adjacency != null) return navigate_shared(search, policy);
    const links = &search.shared.reader.links.?;
    const codes = &search.shared.reader.codes;
    var chosen: Chosen = .{};
    var head: u32 = 0; // fresh[head..tail] were met and are not estimated yet
    var tail: u32 = 0;
    var asked: u32 = 0; // the codes of fresh[head..asked] are on their way
    while (true) {
        while (tail - head < met_ahead) {
            const vertex = chosen.next(search, policy) orelse break;
            const ids = links.decode_list(vertex.number, vertex.list, &search.neighbors) catch return error.BadList;
            search.cost.expanded += 1;
            const met = search.visited.insert_new(ids, search.fresh[tail..]);
            tail += policy.keep(search, vertex.number, tail, met) orelse return;
        }
        if (head == tail) return;
        const ask_until = @min(tail, head + met_ahead);
        codes.prefetch(search.fresh[asked..@max(asked, ask_until)]);
        asked = @max(asked, ask_until);
        const count = @min(estimated_together, tail - head);
        search.query.estimate_asked(codes, search.fresh[head..][0..count], count, search.distances[0..count]);
        search.cost.estimates += count;
        var offered = policy.offer(search, head, count);
        while (offered != 0) : (offered &= offered - 1) links.prefetch(search.fresh[head + @ctz(offered)]);
        head += count;
        if (head >= Search.fresh_max / 4) {
            std.mem.copyForwards(u32, search.fresh[0 .. tail - head], search.fresh[head..tail]);
            policy.move(head, tail);
            asked -= head;
            tail -= head;
            head = 0;
        }
    }
}

/// Vertices to be followed, the first chosen first; as many as may wait are chosen at once. What it takes to find a list was
/// asked for when its vertex was offered, which may be just before it is chosen: so the list is looked for a step later.
const Chosen = struct {
    vertices: [chosen_ahead]Vertex = undefined,
    count: u32 = 0,
    /// Of the first so many the list was found, and is on its way.
    found: u32 = 0,

    const Vertex = struct { number: u32, list: layout.links.Links.List };

    inline fn next(self: *Chosen, search: *Search, policy: anytype) ?Vertex {
        const links = &search.shared.reader.links.?;
        // Those chosen a step before: what finding their lists takes has come meanwhile.
        for (self.vertices[self.found..self.count]) |*vertex| vertex.list = links.prefetch_list(vertex.number);
        self.found = self.count;
        while (self.count < chosen_ahead) : (self.count += 1) {
            self.vertices[self.count].number = policy.choose(search) orelse break;
        }
        if (self.count == 0) return null;
        if (self.found == 0) {
            self.vertices[0].list = links.prefetch_list(self.vertices[0].number);
            self.found = 1;
        }
        const first = self.vertices[0];
        self.count -= 1;
        self.found -= 1;
        for (0..self.count) |i| self.vertices[i] = self.vertices[i + 1];
        return first;
    }
};

// ---- navigation over shared links ----
//
// A vertex that is followed brings the codes of its whole page, and the links of the list of its stretch
// (index/block_adjacency.zig). Both happen once, so many vertices of a list are followed without a look.

/// Vertices of a page that are looked at together; beside them `fresh` has room for what a policy adds.
const page_run = 128;
/// Until the policy chooses nothing any more.
fn navigate_shared(search: *Search, policy: anytype) PageError!void {
    const Policy = @typeInfo(@TypeOf(policy)).pointer.child;
    comptime std.debug.assert(Search.fresh_max >= layout.adjacency.neighbors_max + Policy.added_max + estimated_together);
    const reader = search.shared.reader;
    const block_links = &reader.block_adjacency.?;
    while (policy.choose(search)) |vertex| {
        search.cost.expanded += 1;
        const stretch = block_links.stretch_of(vertex);
        // A key of a page has its lowest bit clear, one of a stretch has it set.
        const ids = if (search.followed.insert(2 * stretch + 1)) try block_links.decode(stretch, &search.neighbors) else search.neighbors[0..0];
        if (!take_shared(search, policy, vertex, ids)) return;
        const page = reader.directory.page_of(vertex);
        if (!search.followed.insert(2 * page)) continue;
        var next = reader.directory.first_vertex(page);
        const end = reader.directory.first_vertex(page + 1);
        var own: [page_run]u32 = undefined;
        while (next < end) {
            const count = @min(page_run, end - next);
            for (own[0..count], next..) |*id, one| id.* = @intCast(one);
            next += count;
            if (!take_shared(search, policy, vertex, own[0..count])) return;
        }
    }
}

/// Offers those of `ids` that were not met before; false where the policy ends navigation.
fn take_shared(search: *Search, policy: anytype, vertex: u32, ids: []const u32) bool {
    const reader = search.shared.reader;
    const codes = &reader.codes;
    const met = search.visited.insert_new(ids, &search.fresh);
    const count = policy.keep(search, vertex, 0, met) orelse return false;
    codes.prefetch(search.fresh[0..count]);
    var at: u32 = 0;
    while (at < count) {
        const some = @min(estimated_together, count - at);
        search.query.estimate_asked(codes, search.fresh[at..][0..some], some, search.distances[0..some]);
        _ = policy.offer(search, at, some);
        at += some;
    }
    search.cost.estimates += count;
    return true;
}

// ---- a filter in front of the list ----
//
// A filter decides which vertices may be candidates, and which are followed only because they lead on. filter_plan.zig
// chooses the plan.
//
// Filtered traversal goes best first through passing and failing vertices alike, but only passing ones enter the list.
//
// - How far it goes follows from what it meets: of the list only the first list_size·√s candidates count, s being the
//   share of passing vertices among those followed so far. So the list spans list_size/√s vertices, more of the graph
//   the fewer pass, as it must to hold k of them; and labels that follow the vectors, or avoid them, are seen as such.
// - Neighbors in the graph are placed near each other. So with each vertex the passing ones of its block, 64 vertices
//   in placement order, are estimated: what links would reach over two or three failing vertices costs one look at 64
//   bits. In return one failing vertex stands for the others of its block: their links lead to the same places.
// - Where the way turns out longer than it seemed (labels whose vertices lie far from the query), the search becomes a
//   scan, before it has spent what that costs.

comptime {
    assert(scan_batch <= Search.fresh_max and Search.fresh_max % lists.List.insert_max == 0);
}

/// Vertices of a neighborhood in placement order.
const block_size = 64;
/// Vertices estimated at once in a scan.
const scan_batch = 512;
/// The weight of the share over all rows beside the vertices that were met, in vertices.
const prior_weight = 32;
/// Vertices followed before the plan is looked at again, each time.
const review_every = 32;

/// Memory of filtered traversal.
const TraversalMemory = struct {
    frontier: lists.Frontier,
    blocks: lists.Visited,

    const frontier_capacity = 1 << 14;
    const blocks_capacity = 1 << 14;

    pub fn init(allocator: std.mem.Allocator) error{OutOfMemory}!TraversalMemory {
        var frontier = try lists.Frontier.init(allocator, frontier_capacity);
        errdefer frontier.deinit(allocator);
        return .{ .frontier = frontier, .blocks = try .init(allocator, blocks_capacity) };
    }

    pub fn deinit(self: *TraversalMemory, allocator: std.mem.Allocator) void {
        self.frontier.deinit(allocator);
        self.blocks.deinit(allocator);
    }
};

const FilteredTraversal = struct {
    pending: Pending,
    /// Vertices that fail and may lead on.
    frontier: *lists.Frontier,
    /// Blocks whose passing vertices were estimated.
    blocks: *lists.Visited,
    /// Of the vertices met best first, how many pass and fail.
    passed: u32 = 0,
    failed: u32 = 0,
    /// Share of all rows that pass, and of those around here.
    share: f32,
    local: f32,
    /// The candidates that count: the list's first so many.
    reach: u32 = 0,
    review_at: u32 = review_every,
    /// The cost of a scan, and of a vertex followed.
    scan_ns: f32,
    follow_ns: f32,

    fn init(search: *Search, case: *const filter_plan.Case) FilteredTraversal {
        const room = &search.room.traversal;
        room.frontier.len = 0;
        room.blocks.reset(256);
        return .{
            .pending = .{ .items = search.room.pending },
            .frontier = &room.frontier,
            .blocks = &room.blocks,
            .share = @floatCast(case.share),
            .local = @floatCast(case.share),
            .scan_ns = @floatCast(case.scan().ns),
            .follow_ns = @floatCast(case.traversal_step_ns()),
        };
    }

    /// Nothing at this distance or beyond needs to be followed.
    inline fn bound(self: *const FilteredTraversal, list: *const lists.List) f32 {
        return if (list.len < self.reach) std.math.inf(f32) else @min(list.reach(), list.items[self.reach - 1].distance());
    }

    /// From what was met to what counts.
    fn adapt(self: *FilteredTraversal, list_size: u32, k: u32) void {
        const met: f32 = @floatFromInt(self.passed + self.failed);
        self.local = (@as(f32, @floatFromInt(self.passed)) + prior_weight * self.share) / (met + prior_weight);
        const wanted: u32 = @intFromFloat(@ceil(filter_plan.traversal_margin * @as(f32, @floatFromInt(list_size)) * @sqrt(self.local)));
        self.reach = std.math.clamp(wanted, @min(list_size, k + filter_plan.spare), list_size);
    }

    /// So few pass around here that their neighborhoods in placement order are looked at.
    inline fn is_thin(self: *const FilteredTraversal) bool {
        return self.local < filter_plan.dense_share;
    }

    /// At the present rate the vertices left to follow cost more than a scan of all that pass.
    fn prefers_scan(self: *const FilteredTraversal) bool {
        const met: f32 = @floatFromInt(self.passed + self.failed);
        const share = (@as(f32, @floatFromInt(self.passed)) + 0.5) / (met + 0.5);
        const left = @as(f32, @floatFromInt(self.reach)) / share - met;
        // One in three of those that fail is followed, where they stand for each other (filter_plan.Case.traversal).
        const followed = if (self.is_thin()) left / 3 else left;
        return followed * self.follow_ns > self.scan_ns;
    }
};

/// The first step of a search with a filter.
fn begin_filtered(search: *Search, filter: *const filter_room.Filter) void {
    const remote = search.parameters.filter_plan == .auto and search.is_remote();
    const plan = if (remote) .scan else filter_plan.plan_of(search.shared, filter, &search.parameters);
    if (filter.estimate() == 0) return search.change(.scan); // exact, and nothing passes
    if (search.parameters.sigma_by_plan and (plan == .scan or plan == .gate)) {
        const asked = filter_plan.sigma_share * parameters_file.sigma_of_scan(&search.parameters);
        const widest = if (search.parameters.recall > 0) @max(filter_plan.sigma_least, asked) else filter_plan.sigma_least;
        const least: f32 = @floatCast(widest * (1 - filter.estimate()));
        search.parameters.sigma = @max(search.parameters.sigma, least);
    }
    switch (plan) {
        .scan => begin_scan(search),
        .gate => {
            search.list.reset(parameters_file.list_size_filtered(&search.parameters));
            if (is_beside(search) and search.shared.blocks != null) return search.begin_late_scan();
            var traversal: FilteredTraversal = .init(search, &.of(search.shared, filter, &search.parameters));
            search.stop_by_distance();
            traversal.adapt(search.list.limit, search.parameters.k);
            search.change(.{ .filtered = traversal });
            if (search.request.navigated) |found| if (search.take_navigated(found)) return;
            enter_graph(search);
        },
        .late => {
            search.list.reset(late_list_size(search.shared, filter, &search.parameters));
            search.begin_graph();
        },
        .auto => unreachable, // the planner has chosen
    }
}

/// The list of a search that applies its filter to results.
pub fn late_list_size(shared: *const Shared, filter: *const filter_room.Filter, parameters: *const Parameters) u32 {
    if (parameters.filter_plan != .auto) return parameters.list_size;
    return @intFromFloat(filter_plan.Case.of(shared, filter, parameters).late_list_size());
}

/// Estimates every passing vertex, or every one without a filter; what is left in the list needs no navigation.
fn begin_scan(search: *Search) void {
    const parameters = &search.parameters;
    search.list.reset(@min(@max(search.list.limit, parameters_file.scan_list_size, 4 * parameters.k), parameters_file.list_size_max));
    if (parameters.sigma_by_plan) {
        parameters.sigma = parameters_file.sigma_of_scan(parameters);
    }
    look_at_all(search);
}

/// The same with list and bound as they are.
fn look_at_all(search: *Search) void {
    search.change(.scan);
    estimate_all(search);
}

fn estimate_all(search: *Search) void {
    const parameters = &search.parameters;
    const n = search.shared.reader.n();
    const share = if (search.request.filter) |one| one.estimate() else 1;
    if (search.request.filter != null and parameters.sigma_by_plan and share * @as(f64, @floatFromInt(n)) <= filter_plan.read_all_max) {
        parameters.sigma = std.math.inf(f32);
    }
    var first: u32 = 0;
    if (search.shared.blocks) |*blocks| if (share >= share_in_blocks) {
        estimate_blocks(search, blocks);
        first = blocks.count * quant.blocks.rows;
    };
    const filter = search.request.filter orelse {
        while (first < n) {
            const some = @min(scan_batch, n - first);
            for (search.fresh[0..some], first..) |*id, vertex| id.* = @intCast(vertex);
            first += some;
            estimate_passing(search, some);
        }
        return;
    };
    var count: usize = 0;
    if (filter.matches_found()) |found| {
        var matches = found;
        while (matches.next()) |vertex| {
            if (vertex < first) continue;
            search.fresh[count] = vertex;
            count += 1;
            if (count < scan_batch) continue;
            estimate_passing(search, count);
            count = 0;
        }
    } else for (first / 64..(n + 63) / 64) |i| {
        var word = filter.matching_word(i);
        if (first > 64 * i) word &= ~@as(u64, 0) << @intCast(first - 64 * i);
        while (word != 0) : (word &= word - 1) {
            search.fresh[count] = @intCast(64 * i + @ctz(word));
            count += 1;
        }
        if (count < scan_batch - 64) continue;
        estimate_passing(search, count);
        count = 0;
    }
    estimate_passing(search, count);
}

/// If fewer pass, their codes are estimated one by one.
const share_in_blocks = 0.1;
/// Blocks that are estimated by one bound.
const blocks_together = 8;
/// The k-th nearest is farther than its estimate says, for the least estimates err most: so many deviations are left
/// beside those that pages are chosen by.
const beyond_reach = 2;

/// The rows of all blocks that pass.
fn estimate_blocks(search: *Search, blocks: *const quant.Blocks) void {
    const codes = &search.shared.reader.codes;
    const reach = if (search.beside) |*beside| search.query.farthest_estimate(blocks.errors, search.parameters.sigma + beyond_reach, beside.reach) else std.math.inf(f32);
    var entering: Entering = .{};
    var first: u32 = 0;
    // A list that is empty is full after a few rows, and its bound leaves out most of the others.
    var together: u32 = if (reach == std.math.inf(f32)) 1 else blocks_together;
    while (first < blocks.count) : (together = @min(2 * together, blocks_together)) {
        const count = @min(together, blocks.count - first);
        var near: [blocks_together]u32 = undefined;
        const at = first * quant.blocks.rows;
        search.query.estimate_blocks(blocks.bytes(codes, first, count), codes.factors.ptr + at, codes.center_ids.ptr + at, @min(reach, search.list.bound()), search.distances[0 .. count * quant.blocks.rows], near[0..count]);
        search.cost.estimates += count * quant.blocks.rows;
        for (near[0..count], first..) |bits, block| {
            var left = if (search.request.filter) |filter| bits & half_of(filter.matching_word(block / 2), block) else bits;
            while (left != 0) : (left &= left - 1) {
                const vertex: u32 = @intCast(block * quant.blocks.rows + @ctz(left));
                if (vertex != search.request.excluded) entering.add(search, vertex, search.distances[vertex - at]);
            }
        }
        entering.flush(search);
        first += count;
    }
}

inline fn half_of(word: u64, block: usize) u32 {
    return @truncate(word >> @intCast(quant.blocks.rows * (block % 2)));
}

/// Candidates on their way into the list, as many at a time as it takes.
const Entering = struct {
    vertices: [lists.List.insert_max]u32 = @splat(0),
    distances: [lists.List.insert_max]f32 = @splat(0),
    count: u32 = 0,

    inline fn add(self: *Entering, search: *Search, vertex: u32, distance: f32) void {
        self.vertices[self.count] = vertex;
        self.distances[self.count] = distance;
        self.count += 1;
        if (self.count == self.vertices.len) self.flush(search);
    }

    fn flush(self: *Entering, search: *Search) void {
        if (self.count > 0) _ = search.list.insert_many(&self.vertices, &self.distances, self.count);
        self.count = 0;
    }
};

/// A vertex that a page brought, not met before: into the list if it may be an answer; else it only leads on, as long
/// as it is nearer than what counts.
fn offer_filtered(search: *Search, vertex: u32, distance: f32) void {
    if (!(distance < search.list.bound())) return;
    const traversal = &search.state.filtered;
    if (search.request.filter.?.passes(vertex)) {
        _ = search.list.insert(vertex, distance);
    } else if (distance < traversal.bound(&search.list)) traversal.frontier.push(vertex, distance);
}

/// Best first, until nothing within what counts is left to follow.
fn navigate_filtered(search: *Search) PageError!void {
    var filtered: Filtered = .{ .traversal = &search.state.filtered, .filter = search.request.filter.? };
    return navigate_by(search, &filtered);
}

/// The filter stands between what is met and what is estimated.
const Filtered = struct {
    traversal: *FilteredTraversal,
    filter: *const filter_room.Filter,
    /// Of `fresh`, by place.
    passes: [Search.fresh_max]bool = undefined,

    const added_max = block_size;

    /// The nearest to follow: a candidate of the list, or what fails but lies within what counts.
    pub fn choose(self: *Filtered, search: *Search) ?u32 {
        const traversal = self.traversal;
        const reach = traversal.bound(&search.list);
        const place = search.list.nearest_unexpanded() orelse search.list.len;
        const near = if (place < @min(traversal.reach, search.list.len)) search.list.items[place].distance() else std.math.inf(f32);
        while (true) {
            const failing = traversal.frontier.nearest();
            if (!(failing < near and failing < reach)) break;
            const vertex = traversal.frontier.pop();
            traversal.failed += 1;
            if (traversal.is_thin() and traversal.blocks.contains(vertex / block_size)) continue;
            search.cost.filtered += 1;
            return vertex;
        }
        if (near == std.math.inf(f32)) return null;
        traversal.passed += 1;
        search.list.mark_expanded(place);
        return search.list.items[place].vertex();
    }

    /// Of what was met and fails only such stay whose block nothing stands for yet; the block of the vertex is added.
    pub inline fn keep(self: *Filtered, search: *Search, vertex: u32, at: u32, met: u32) ?u32 {
        const traversal = self.traversal;
        var count = self.ask_filter(search.fresh[at..][0..met], self.passes[at..]);
        if (traversal.is_thin()) {
            const around = self.look_around(search, vertex / block_size, search.fresh[at + count ..]);
            @memset(self.passes[at + count ..][0..around], true);
            count += around;
        }
        traversal.adapt(search.list.limit, search.parameters.k);
        if (search.cost.expanded >= traversal.review_at) {
            traversal.review_at += review_every;
            if (search.parameters.filter_plan == .auto and traversal.prefers_scan()) {
                begin_scan(search);
                return null;
            }
        }
        return count;
    }

    pub inline fn offer(self: *Filtered, search: *Search, at: u32, count: u32) u32 {
        // As nearly always where few rows are deleted: they enter together.
        if (std.mem.allEqual(bool, self.passes[at..][0..count], true))
            return search.list.insert_many(search.fresh[at..][0..estimated_together], search.distances[0..estimated_together], count);
        var offered: u32 = 0;
        for (search.fresh[at..][0..count], search.distances[0..count], self.passes[at..][0..count], 0..) |vertex, distance, passes, i| {
            if (passes) {
                if (!search.list.insert(vertex, distance)) continue;
            } else {
                if (!(distance < self.traversal.bound(&search.list))) continue;
                self.traversal.frontier.push(vertex, distance);
            }
            offered |= @as(u32, 1) << @intCast(i);
        }
        return offered;
    }

    pub inline fn move(self: *Filtered, head: u32, tail: u32) void {
        std.mem.copyForwards(bool, self.passes[0 .. tail - head], self.passes[head..tail]);
    }

    /// Asks the filter for what was met and leaves in place what will be estimated: of those that fail only such whose block
    /// nothing stands for yet. Returns how many.
    fn ask_filter(self: *const Filtered, met: []u32, passes: []bool) u32 {
        const traversal = self.traversal;
        self.filter.passes_many(met, passes[0..met.len]);
        var kept: u32 = 0;
        for (met, 0..) |id, i| {
            const pass = passes[i];
            if (!pass and traversal.is_thin() and traversal.blocks.contains(id / block_size)) continue;
            met[kept] = id;
            passes[kept] = pass;
            kept += 1;
        }
        return kept;
    }

    /// The passing vertices of a block that were not met before, unless it was looked at already. Returns how many.
    fn look_around(self: *const Filtered, search: *Search, block: u32, out: []u32) u32 {
        if (!self.traversal.blocks.insert(block)) return 0;
        var word = self.filter.matching_word(block);
        var count: u32 = 0;
        while (word != 0) : (word &= word - 1) {
            const id: u32 = block * block_size + @ctz(word);
            out[count] = id;
            count += @intFromBool(search.visited.insert(id));
        }
        return count;
    }
};

/// Estimates the first of `fresh`, which pass and were not met.
fn estimate_passing(search: *Search, count: usize) void {
    search.query.estimate(&search.shared.reader.codes, search.fresh[0..count], search.distances[0..count]);
    search.cost.estimates += @intCast(count);
    if (search.request.excluded != Request.excluded_none) {
        for (search.fresh[0..count], search.distances[0..count]) |vertex, *distance| {
            if (vertex == search.request.excluded) distance.* = std.math.inf(f32); // which enters no list
        }
    }
    var at: usize = 0;
    while (at < count) : (at += lists.List.insert_max) {
        const some: u32 = @intCast(@min(lists.List.insert_max, count - at));
        _ = search.list.insert_many(search.fresh[at..][0..lists.List.insert_max], search.distances[at..][0..lists.List.insert_max], some);
    }
}

// ---- links on disk ----
//
// Cache-aware beam search (VeloANN, algorithm 2) over the same state. The nearest candidates that were
// not followed form the look-ahead set. The nearest one of it that is at hand (on a page that the query holds, or in
// the cache) is followed; when none is, the pages of all of them are asked for. A query waits only then.
//
// Beyond the paper:
// - A search starts near: vertices close in id are close in space (placement order), so the codes of whole stretches
//   of ids around the best entry points are looked through before the first read (`look_around_entries`).
// - A page is read only for a candidate that may still matter: one whose estimate, less some σ, reaches the k-th best
//   full distance. What is at hand is followed as long as it stands in the list, for that costs no read.
// - Every record of a page that was read is scored and may become a candidate, and a page stays at hand for as long as
//   its query follows links (pages.zig), so that a neighbor on the same page costs no second read.

/// Entry points around which codes are looked through: more save less than a read.
const stretches_max = 4;
/// The same beside a larger segment: the codes of more stretches stand for reads on the way in.
const stretches_bounded_max = 8;
/// Vertices that are not read are not followed, and the way to those within the bound of other segments (segments.zig) begins beyond it:
/// that bound holds once so many rows are known that lie nearer than where the way would go on.
const way_in = 2;

/// The cost of a way in, in reads: about four, each of which waits for the one before.
const reads_in = 8;

/// Within the bound of a larger segment: the way in would take more than a look at all codes.
fn is_scan_cheaper(search: *const Search) bool {
    return search.shared.plan == .links_on_disk and is_beside(search) and
        filter_plan.scans_within_reads(search.shared, reads_in);
}

/// Most answers lie in another segment.
fn is_beside(search: *const Search) bool {
    return search.request.role == .smaller;
}

/// It keeps as many candidates as navigation and reads by the same bounds.
fn scan_beside(search: *Search) void {
    search.parameters.sigma = search.parameters.sigma_on_disk;
    look_at_all(search);
}

/// Offers all vertices near in id to the best entry points, which are named by their places. As many a stretch as there are vertices to an entry point,
/// so with the square root of n.
fn look_around_entries(search: *Search, best: []const lists.Candidate) void {
    const n = search.shared.reader.n();
    const length = @max(1, n / @as(u32, @intCast(search.shared.entries.len)));
    var ids: [256]u32 = undefined;
    const stretches: usize = if (is_beside(search)) stretches_bounded_max else stretches_max;
    for (best[0..@min(best.len, stretches)]) |place| {
        var next = search.shared.entries[place.vertex()] -| length / 2;
        const end = @min(n, next + length);
        while (next < end) {
            const count = @min(ids.len, end - next);
            for (ids[0..count], next..) |*id, vertex| id.* = @intCast(vertex);
            next += count;
            search.follow(ids[0..count]);
        }
    }
}

/// State of a search over links on disk.
const OnDisk = struct {
    pending: Pending,
    recent: pages_file.RecentPages,

    /// Keeps a page at hand; one that goes for it may be read again.
    pub fn hold(self: *OnDisk, search: *Search, page: pages_file.Page) Fate {
        const warm_start = self.recent.add(page) orelse return .hold;
        search.pages.remove(warm_start.number);
        return .{ .exchange = warm_start.buffer };
    }
};

fn step_on_disk(search: *Search) PageError!Want {
    while (true) {
        // Failing vertices lead on, but what they lead to can only be read from disk: they are followed like others.
        const nearest = nearest_that_matters(search) orelse return .done;
        const place = find_at_hand(search, nearest) orelse {
            ask_ahead(search, nearest);
            if (search.round.awaited == 0) return .done; // as many pages as a query may ask for
            search.cost.rounds += 1;
            return .pages;
        };
        const vertex = search.list.items[place].vertex();
        search.list.mark_expanded(place);
        try follow_at_hand(search, vertex);
    }
}

/// The nearest candidate to follow. One too far to be read for is passed over for good: the bound only sinks.
fn nearest_that_matters(search: *Search) ?u32 {
    while (search.list.nearest_unexpanded()) |place| {
        const candidate = search.list.items[place];
        if (worth_a_read(search, candidate) or at_hand(search, candidate.vertex())) return place;
        search.list.mark_expanded(place);
    }
    return null;
}

fn worth_a_read(search: *const Search, candidate: lists.Candidate) bool {
    const bound = search.results.bound();
    const distance = candidate.distance();
    if (distance <= @min(bound, search.reported)) return true;
    const sigma = search.query.sigma_upper(&search.shared.reader.codes, candidate.vertex(), distance);
    const least = distance - search.parameters.sigma_on_disk * sigma;
    if (least > bound) return false;
    return least <= search.reported or least <= search.results.nth(@min(way_in, search.parameters.k));
}

/// The nearest candidate of the look-ahead set, which begins at `nearest`, that can be followed without a read.
fn find_at_hand(search: *const Search, nearest: u32) ?u32 {
    var seen: u32 = 0;
    for (search.list.items[nearest..search.list.len], nearest..) |candidate, place| {
        if (candidate.expanded()) continue;
        if (at_hand(search, candidate.vertex())) return @intCast(place);
        seen += 1;
        if (seen == search.parameters.beam_width) break;
    }
    return null;
}

/// Wants the pages of the look-ahead set that are neither at hand nor on their way.
fn ask_ahead(search: *Search, nearest: u32) void {
    var seen: u32 = 0;
    for (search.list.items[nearest..search.list.len]) |candidate| {
        if (candidate.expanded()) continue;
        const vertex = candidate.vertex();
        const page = search.shared.reader.directory.page_of(vertex);
        const ask = !at_hand(search, vertex) and worth_a_read(search, candidate) and
            search.round.count < search.round.pages.len and search.pages.insert(page);
        if (ask) search.round.add(page);
        seen += 1;
        if (seen == search.parameters.beam_width) break;
    }
}

fn at_hand(search: *const Search, vertex: u32) bool {
    if (search.state.disk.recent.find(search.shared.reader.directory.page_of(vertex)) != null) return true;
    const cache = search.shared.cache orelse return false;
    return cache.contains(vertex);
}

fn follow_at_hand(search: *Search, vertex: u32) PageError!void {
    const reader = search.shared.reader;
    search.cost.expanded += 1;
    const own = &search.state.disk;
    if (own.recent.find(reader.directory.page_of(vertex))) |place| {
        const view = &own.recent.slots[place].view;
        const list = try view.list(vertex - view.first_vertex);
        const ids = reader.adjacency.decode(vertex, list.bytes, list.length, reader.n(), &search.neighbors) catch return error.BadList;
        return search.follow(ids);
    }
    // Another query's insertion may have taken the slot since the look: then the vertex is a candidate again.
    const cache = search.shared.cache orelse return follow_later(search, vertex);
    const pin = cache.peek(vertex) orelse return follow_later(search, vertex);
    defer cache.release(pin);
    const found = score_cached(search, vertex, pin.bytes());
    const ids = reader.adjacency.decode(vertex, found.list.ptr, @intCast(found.list.len), reader.n(), &search.neighbors) catch return error.BadList;
    search.follow(ids);
    search.take_pending();
}

fn follow_later(search: *Search, vertex: u32) void {
    for (search.list.slice(), 0..) |candidate, place| {
        if (candidate.vertex() == vertex) return search.list.unmark(@intCast(place));
    }
}

// ---- the record cache ----
//
// Records that answer without a read, and records that stay of a page that was read.

/// Scores a vertex by its cached record. True when there is one, now or before.
fn answer_from_cache(search: *Search, vertex: u32) bool {
    const cache = search.shared.cache orelse return false;
    if (search.from_cache.contains(vertex)) return true;
    const pin = cache.peek(vertex) orelse return false;
    defer cache.release(pin);
    _ = score_cached(search, vertex, pin.bytes());
    return true;
}

/// Scores a record that the query asked for, and with it what else of its page is cached, as the page itself would
/// have brought them: a query that is asked again finds what it found. Returns the record.
fn score_cached(search: *Search, vertex: u32, bytes: []const u8) shared_file.Record {
    const found = shared_file.read_record(bytes, search.shared.reader.pages_header.lower_bytes);
    if (search.from_cache.insert(vertex)) {
        search.cost.cache_hits += 1;
        score_cached_once(search, vertex, found);
        score_cached_page(search, vertex);
    }
    return found;
}

fn score_cached_page(search: *Search, vertex: u32) void {
    const cache = search.shared.cache.?;
    const directory = &search.shared.reader.directory;
    const page = directory.page_of(vertex);
    const first = directory.first_vertex(page);
    for (first..first + directory.record_count(page)) |other_usize| {
        const other: u32 = @intCast(other_usize);
        if (!cache.contains(other) or search.from_cache.contains(other)) continue;
        const pin = cache.peek(other) orelse continue;
        defer cache.release(pin);
        if (!search.from_cache.insert(other)) continue;
        score_cached_once(search, other, shared_file.read_record(pin.bytes(), search.shared.reader.pages_header.lower_bytes));
    }
}

fn score_cached_once(search: *Search, vertex: u32, found: shared_file.Record) void {
    if (vertex == search.request.excluded) return;
    var distance: [1]f32 = undefined;
    search.query.estimate_records(&search.shared.reader.codes, &.{vertex}, &.{found.lower}, &.{found.factors}, &distance);
    const passes = if (search.request.filter) |filter| filter.passes(vertex) else true;
    if (passes) _ = search.results.insert_once(vertex, distance[0]);
    const pending = search.pending() orelse return;
    if (distance[0] < search.list.bound()) pending.add(vertex, distance[0]);
}

/// Keeps records of a page that was read: those that were asked for (candidates within the bound, and those that entered
/// the results), and those of their colors (VeloANN, §3.3).
fn keep_records(search: *Search, cache: *cache_room.Cache, view: *const layout.page.View, full: []const f32) PageError!void {
    var wanted: [layout.page.records_max]bool = @splat(false);
    const bound = @min(search.results.bound(), search.reported);
    for (full, wanted[0..full.len]) |distance, *one| one.* = distance <= bound;
    for (search.list.slice()) |candidate| {
        const i = candidate.vertex() -% view.first_vertex;
        if (i < full.len and reaches(search, candidate.vertex(), candidate.distance(), bound)) wanted[i] = true;
    }
    var colors: [256]bool = @splat(false);
    for (full, 0..) |_, i| {
        if (wanted[i]) colors[view.colors[i]] = true;
    }
    colors[0] = false; // the color of those that lie alone
    const lower_bytes = search.shared.reader.pages_header.lower_bytes;
    for (full, 0..) |_, i| {
        @setRuntimeSafety(builtin.mode == .Debug); // measured (decisions/0007): 8 KiB would be filled for every record
        if (!wanted[i] and !colors[view.colors[i]]) continue;
        const list = try view.list(@intCast(i));
        var bytes: [shared_file.record_bytes_max]u8 = undefined;
        const written = shared_file.write_record(&bytes, view.lower[i * lower_bytes ..][0..lower_bytes], factors_of(view, i), list.bytes[0..list.length]) orelse continue;
        _ = cache.try_insert(view.first_vertex + @as(u32, @intCast(i)), written);
    }
}

fn factors_of(view: *const layout.page.View, record_index: usize) quant.RecordFactors {
    return .{ .offset = view.offsets[record_index], .ratio = view.ratios[record_index] };
}

fn reaches(search: *const Search, vertex: u32, distance: f32, bound: f32) bool {
    const sigma = search.query.sigma_upper(&search.shared.reader.codes, vertex, distance);
    return distance - search.parameters.sigma_on_disk * sigma <= bound;
}

test "every state is reached from idle, and a search may end in any" {
    const tags = std.enums.values(State.Tag);
    var reached: std.EnumSet(State.Tag) = .initOne(.idle);
    for (tags) |_| for (tags) |from| for (tags) |to| {
        if (reached.contains(from) and State.leads_to(from, to)) reached.insert(to);
    };
    try std.testing.expectEqual(tags.len, reached.count());
    for (tags) |from| {
        try std.testing.expect(State.leads_to(from, .idle));
        // No state is entered again after it was left.
        for (tags) |to| if (from != .idle and to != .idle and State.leads_to(from, to)) try std.testing.expect(!State.leads_to(to, from));
    }
    try std.testing.expect(!State.leads_to(.idle, .drain) and !State.leads_to(.done, .rescore));
}
