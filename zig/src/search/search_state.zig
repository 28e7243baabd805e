//! One query as a state machine. It never blocks and never reads: it says which pages it wants, and is told of each
//! as it arrives.
//!
//!             ┌────────────┐ no page wanted   ┌──────┐
//!   start ──▶ │  navigate  │ ───────────────▶ │ done │
//!             └────────────┘                  └──────┘
//!        all arrived ▲  │ pages wanted (one round)
//!                    │  ▼
//!             ┌────────────┐
//!             │  reading   │ ⟲ on_page, as they come
//!             └────────────┘
//!
//! Where distances are to be exact, there is another phase before the end (rescoring.zig), which reads pages of vectors.
//!
//! navigate  follows links in memory, best first, with codes in memory, until every candidate was expanded. No read.
//! reading   wanted[next..] are still to be asked for, in_flight are on their way. Every record of an arriving page is
//!           scored with its full code and enters the results; what was never met enters the list, too.
//! The first round is the burst of the design, the later ones are its finish: all choose by the same bound.
const std = @import("std");
const builtin = @import("builtin");
const base = @import("base");
const layout = @import("layout");
const quant = @import("quant");
const filter_room = @import("filter");
const index = @import("index");
const Cost = @import("cost.zig").Cost;
const ablations = @import("ablations.zig");
const lists = @import("list.zig");
const cached = @import("cached.zig");
const navigation = @import("navigation.zig");
const on_disk = @import("on_disk.zig");
const shared_file = @import("shared.zig");
const Shared = shared_file.Shared;
const filtered = @import("filtered.zig");
const rescoring_file = @import("rescoring.zig");
const every = @import("every.zig");
const Rescoring = rescoring_file.Rescoring;
const parameters_file = @import("parameters.zig");
const Bound = @import("bound.zig").Bound;
const Parameters = parameters_file.Parameters;
const assert = std.debug.assert;

pub const PageError = layout.page.Corrupt || error{BadList};

/// pages: go on when the pages wanted (and those on their way) have arrived; done: the results stand.
pub const Want = enum { pages, done };

/// The files that a search reads pages of, by the numbers that devices know them by.
pub const File = enum(u1) { pages, vectors };

/// What becomes of the buffer of a page that has arrived.
pub const Fate = union(enum) {
    /// Nothing in it is needed any more.
    free,
    /// It stays with the query until the end.
    held,
    /// It stays, and another one that the query held is free.
    exchanged: u32,
};

/// A page kept for as long as its query may still follow its links (links on disk).
pub const Held = struct { page: u32, buffer: u32, view: layout.page.View };

pub const Search = struct {
    shared: *const Shared,
    parameters: Parameters = undefined,
    filter: ?*const filter_room.Filter = null,

    query: quant.Query,
    row: []f32,
    rotated: []f32,
    /// The query as it was given; the job's.
    given: []const u8 = &.{},
    given_dtype: index.Dtype = .f32,

    list: lists.List,
    frontier: lists.Frontier,
    visited: lists.Visited,
    results: lists.Results,
    pages: PageSet,
    wanted: [parameters_file.burst_max]u32 = undefined,
    wanted_count: u32 = 0,
    wanted_next: u32 = 0,
    /// Which file's pages they are.
    wanted_file: File = .pages,
    /// Pages that were wanted and have not arrived.
    awaited: u32 = 0,
    rescoring: Rescoring,
    cost: Cost = .{},
    /// Taken as absent: a query that is itself a row of the index looks for its other neighbors (calibration).
    excluded: u32 = none_excluded,
    /// What others have found, as users see it; and what is made of it.
    told: f32 = std.math.inf(f32),
    bound: Bound = .{},
    /// All passing vertices have been estimated: there is nothing to navigate to.
    scanned: bool = false,
    /// Navigation asks the filter (filtered.zig).
    gated: bool = false,
    gate: filtered.Gate,
    /// Records that pages of this round brought and that may enter the list. They wait for the end of the round, so
    /// that an answer does not depend on the order in which pages arrive.
    brought: []lists.Candidate,
    brought_count: u32 = 0,
    /// Links on disk: pages at hand, the oldest first to go.
    held: []Held,
    held_count: u32 = 0,
    held_oldest: u32 = 0,
    /// Buffers of pages that the query held and needs no more; the worker takes them after each step.
    given_up: [held_max]u32 = undefined,
    given_up_count: u32 = 0,
    /// Vertices whose records came from the cache.
    from_cache: PageSet,

    neighbors: [layout.adjacency.neighbors_max]u32 = undefined,
    fresh: [fresh_max]u32 = undefined,
    distances: [fresh_max]f32 = undefined,

    pub const none_excluded = std.math.maxInt(u32);
    pub const fresh_max = 512;
    const frontier_capacity = 1 << 14;
    const visited_capacity = 1 << 17;
    const brought_max = parameters_file.burst_max * layout.page.records_max;
    /// Pages that a query holds on to, links on disk.
    pub const held_max = 64;

    comptime {
        assert(fresh_max >= layout.page.records_max);
        assert(fresh_max >= layout.adjacency.neighbors_max);
    }

    pub fn init(allocator: std.mem.Allocator, shared: *const Shared) error{OutOfMemory}!Search {
        const reader = shared.reader;
        var query = try quant.Query.init(allocator, reader.codes.params);
        errdefer query.deinit(allocator);
        query.bind(&reader.codes);
        const row = try allocator.alloc(f32, reader.header.dim_in);
        errdefer allocator.free(row);
        const rotated = try allocator.alloc(f32, reader.header.dim_code);
        errdefer allocator.free(rotated);
        var list = try lists.List.init(allocator, parameters_file.list_size_max);
        errdefer list.deinit(allocator);
        var frontier = try lists.Frontier.init(allocator, frontier_capacity);
        errdefer frontier.deinit(allocator);
        var visited = try lists.Visited.init(allocator, visited_capacity);
        errdefer visited.deinit(allocator);
        var results = try lists.Results.init(allocator, if (reader.vectors == null) parameters_file.k_max else rescoring_file.held_max);
        errdefer results.deinit(allocator);
        var pages = try PageSet.init(allocator);
        errdefer pages.deinit(allocator);
        var from_cache = try PageSet.init(allocator);
        errdefer from_cache.deinit(allocator);
        var gate = try filtered.Gate.init(allocator);
        errdefer gate.deinit(allocator);
        var rescoring = try Rescoring.init(allocator, reader);
        errdefer rescoring.deinit(allocator);
        const brought = try base.alloc_untouched(allocator, lists.Candidate, brought_max);
        errdefer base.free_untouched(allocator, brought);
        const held = try base.alloc_untouched(allocator, Held, if (shared.plan == .links_on_disk) held_max else 0);
        return .{
            .shared = shared,
            .query = query,
            .row = row,
            .rotated = rotated,
            .list = list,
            .frontier = frontier,
            .visited = visited,
            .results = results,
            .pages = pages,
            .from_cache = from_cache,
            .gate = gate,
            .rescoring = rescoring,
            .brought = brought,
            .held = held,
        };
    }

    pub fn deinit(self: *Search, allocator: std.mem.Allocator) void {
        self.query.deinit(allocator);
        allocator.free(self.row);
        allocator.free(self.rotated);
        self.list.deinit(allocator);
        self.frontier.deinit(allocator);
        self.visited.deinit(allocator);
        self.results.deinit(allocator);
        self.pages.deinit(allocator);
        self.from_cache.deinit(allocator);
        self.gate.deinit(allocator);
        self.rescoring.deinit(allocator);
        base.free_untouched(allocator, self.brought);
        base.free_untouched(allocator, self.held);
    }

    /// Takes a query of `dim` elements; what follows is `step`.
    pub fn start(self: *Search, bytes: []const u8, dtype: index.Dtype, parameters: Parameters, filter: ?*const filter_room.Filter) void {
        const reader = self.shared.reader;
        self.parameters = parameters;
        self.parameters.exact = parameters.exact and reader.vectors != null;
        self.bound = .of(self.told, reader.metric, self.shared.plan, &self.parameters);
        self.filter = filter;
        self.given = bytes;
        self.given_dtype = dtype;
        index.space.convert(dtype, bytes, self.row);
        index.space.place(reader.metric, self.row);
        for (self.row, reader.mean) |*value, mean| value.* -= mean;
        reader.rotation.apply(self.row, self.rotated);
        self.query.prepare(self.rotated);
        self.list.reset(parameters.list_size);
        self.results.reset(parameters.k, if (self.parameters.exact) rescoring_file.spare else 0);
        self.rescoring.reset();
        self.frontier.len = 0;
        self.visited.reset(parameters.list_size * 24);
        // As if met before: it enters no list, and so is not followed either.
        if (self.excluded != none_excluded) _ = self.visited.insert(self.excluded);
        self.pages.reset();
        self.wanted_count = 0;
        self.wanted_next = 0;
        self.wanted_file = .pages;
        self.awaited = 0;
        self.scanned = false;
        self.gated = false;
        self.brought_count = 0;
        self.held_count = 0;
        self.held_oldest = 0;
        self.given_up_count = 0;
        self.from_cache.reset();
        self.cost = .{ .outside = @intFromBool(self.lies_outside()) };
        if (parameters.every and self.parameters.exact) every.begin(self) else if (filter != null) filtered.begin(self) else if (parameters.scan or self.is_remote()) filtered.scan(self) else if (on_disk.prefers_scan(self)) on_disk.scan(self) else self.enter();
    }

    /// A query outside the rows has its nearest at the rim, all about as far: a graph of rows does not lead there, and no
    /// calibration knows such queries. Who names a list gets that list.
    pub fn is_remote(self: *const Search) bool {
        return self.parameters.recall > 0 and self.lies_outside();
    }

    fn lies_outside(self: *const Search) bool {
        return self.query.norm2 > self.shared.reader.header.remote_norm2;
    }

    /// The best of the entry points near the query, and the medoid.
    pub fn enter(self: *Search) void {
        const shared = self.shared;
        const keep = 8;
        var best: [keep]lists.Candidate = undefined;
        var best_count: u32 = 0;
        var centers: [centers_looked_max]Near = undefined;
        var looked: u32 = 0;
        for (self.nearest_centers(&centers)) |near| {
            if (looked >= shared_file.entries_looked) break;
            var at = shared.entry_starts[near.center];
            const end = shared.entry_starts[near.center + 1];
            looked += end - at;
            while (at < end) {
                const count: u32 = @min(fresh_max, end - at);
                self.query.estimate(&shared.entry_codes, shared.entry_places[at..][0..count], self.distances[0..count]);
                for (self.distances[0..count], shared.entries[at..][0..count]) |distance, vertex| {
                    @setRuntimeSafety(builtin.mode == .Debug); // measured (decisions/0007)
                    if (best_count == keep and distance >= best[keep - 1].distance) continue;
                    if (best_count < keep) best_count += 1;
                    var place = best_count - 1;
                    while (place > 0 and best[place - 1].distance > distance) : (place -= 1) best[place] = best[place - 1];
                    best[place] = .{ .distance = distance, .tagged = vertex };
                }
                at += count;
            }
        }
        self.cost.estimates += looked;
        for (best[0..best_count]) |candidate| self.meet(candidate.vertex(), candidate.distance);
        if (shared.plan == .links_on_disk) on_disk.look_around(self, best[0..best_count]);
        const medoid = [1]u32{shared.reader.header.entry_vertex};
        self.query.estimate(&shared.reader.codes, &medoid, self.distances[0..1]);
        self.meet(medoid[0], self.distances[0]);
    }

    const centers_looked_max = 64;
    const Near = struct { distance: f32, center: u32 };

    /// Of what the query was prepared with anyway; the nearest first.
    fn nearest_centers(self: *const Search, out: *[centers_looked_max]Near) []const Near {
        const shared = self.shared;
        var count: u32 = 0;
        for (shared.center_norms2, self.query.terms[0..shared.center_norms2.len], 0..) |norm2, term, center| {
            @setRuntimeSafety(builtin.mode == .Debug); // measured (decisions/0007)
            const distance = norm2 + term;
            if (count == out.len and distance >= out[count - 1].distance) continue;
            if (count < out.len) count += 1;
            var place = count - 1;
            while (place > 0 and out[place - 1].distance > distance) : (place -= 1) out[place] = out[place - 1];
            out[place] = .{ .distance = distance, .center = @intCast(center) };
        }
        return out[0..count];
    }

    /// A vertex with its estimated distance, perhaps for the first time.
    inline fn meet(self: *Search, vertex: u32, distance: f32) void {
        if (self.visited.insert(vertex)) self.offer(vertex, distance);
    }

    /// Into the list if it may be an answer.
    inline fn offer(self: *Search, vertex: u32, distance: f32) void {
        if (self.gated) return filtered.offer(self, vertex, distance);
        _ = self.list.insert(vertex, distance);
    }

    /// Estimates and offers those of `ids` that were not met before.
    pub fn follow(self: *Search, ids: []const u32) void {
        const codes = &self.shared.reader.codes;
        const count = self.visited.insert_new(ids, &self.fresh);
        if (count == 0) return;
        codes.prefetch(self.fresh[0..count]);
        self.query.estimate(codes, self.fresh[0..count], self.distances[0..count]);
        self.cost.estimates += count;
        for (self.fresh[0..count], self.distances[0..count]) |id, distance| self.offer(id, distance);
    }

    /// Runs until pages are needed.
    pub fn step(self: *Search) PageError!Want {
        assert(self.wanted_next == self.wanted_count);
        self.wanted_count = 0;
        self.wanted_next = 0;
        const want = if (self.rescoring.active) self.step_of_rescoring() else try self.step_of_codes();
        self.awaited += self.wanted_count;
        return want;
    }

    fn step_of_codes(self: *Search) PageError!Want {
        self.take_brought();
        const want = switch (self.shared.plan) {
            .links_in_memory => try self.step_in_memory(),
            .links_on_disk => if (self.scanned) try self.step_in_memory() else try on_disk.step(self),
        };
        if (want != .done) return want;
        // Links on disk: what is on its way may still be among the answers.
        if (self.parameters.exact and self.awaited > 0) return .pages;
        if (self.parameters.count_used) self.count_used();
        if (!self.parameters.exact) return .done;
        rescoring_file.begin(self);
        return rescoring_file.step(self);
    }

    fn step_of_rescoring(self: *Search) Want {
        if (self.awaited > 0) return .pages;
        return if (self.rescoring.every) every.step(self) else rescoring_file.step(self);
    }

    fn step_in_memory(self: *Search) PageError!Want {
        while (true) {
            if (!self.scanned) try self.navigate();
            try self.choose_pages();
            if (self.wanted_count > 0) {
                self.cost.rounds += 1;
                return .pages;
            }
            if (self.brought_count == 0) return .done;
            self.take_brought(); // by the cache
        }
    }

    fn navigate(self: *Search) PageError!void {
        if (self.gated) return filtered.navigate(self);
        var plain: navigation.Plain = .{};
        return navigation.run(self, &plain);
    }

    pub inline fn bring(self: *Search, vertex: u32, distance: f32) void {
        if (self.brought_count == self.brought.len) return;
        self.brought[self.brought_count] = .{ .distance = distance, .tagged = vertex };
        self.brought_count += 1;
    }

    pub fn take_brought(self: *Search) void {
        const brought = self.brought[0..self.brought_count];
        if (brought.len > 1) std.mem.sortUnstable(lists.Candidate, brought, {}, struct {
            fn less(_: void, a: lists.Candidate, b: lists.Candidate) bool {
                return a.tagged < b.tagged;
            }
        }.less);
        for (brought) |candidate| self.meet(candidate.vertex(), candidate.distance);
        self.brought_count = 0;
    }

    /// The pages of all candidates whose lower bound reaches the k-th best known so far.
    fn choose_pages(self: *Search) PageError!void {
        const reader = self.shared.reader;
        const k = self.parameters.k;
        const candidates = self.list.slice();
        // Full distances as soon as there are k of them; before that the k-th estimate.
        const reach = if (self.results.len >= k)
            self.results.bound()
        else if (candidates.len >= k and !(self.filter != null and !self.gated and !self.scanned))
            candidates[k - 1].distance
        else
            std.math.inf(f32);
        for (candidates) |candidate| {
            const vertex = candidate.vertex();
            const sigma = self.query.sigma_upper(&reader.codes, vertex, candidate.distance);
            if (candidate.distance - self.parameters.sigma * sigma > reach) continue;
            if (self.bound.excludes(candidate.distance, sigma)) continue;
            const page = reader.directory.page_of(vertex);
            if (self.pages.contains(page)) continue;
            if (cached.answer(self, vertex)) continue;
            if (!self.pages.insert(page)) continue;
            self.wanted[self.wanted_count] = page;
            self.wanted_count += 1;
            if (self.wanted_count == self.parameters.burst_max) break;
        }
    }

    /// A page that was wanted has arrived, in the given buffer, and is whole.
    pub fn on_page(self: *Search, page_index: u32, view: *const layout.page.View, buffer: u32) PageError!Fate {
        self.awaited -= 1;
        const reader = self.shared.reader;
        const count = view.record_count;
        const full = self.distances[0..count];
        self.query.estimate_page(&reader.codes, view.first_vertex, count, view.lower, view.offsets, view.ratios, full);
        self.cost.records_scored += count;
        const reach = self.list.bound();
        // A record may come from the cache and with its page, or with a page that is read again.
        const bring_twice = self.shared.cache != null or self.shared.plan == .links_on_disk;
        for (full, 0..) |distance, i| {
            const vertex = view.first_vertex + @as(u32, @intCast(i));
            const near = distance <= self.results.reach();
            if (!near and !(distance < reach)) continue;
            if (vertex == self.excluded) continue;
            if (ablations.of(self.shared).record_only and !self.scanned and !self.visited.contains(vertex)) continue;
            if (near) {
                const passes = if (self.filter) |filter| filter.passes(vertex) else true;
                if (passes) _ = if (bring_twice) self.results.insert_once(vertex, distance) else self.results.insert(vertex, distance);
            }
            if (!self.scanned and distance < reach) self.bring(vertex, distance);
        }
        if (self.shared.cache) |cache| try cached.keep(self, cache, view, full);
        if (self.shared.plan == .links_in_memory or self.scanned) return .free;
        return self.hold(.{ .page = page_index, .buffer = buffer, .view = view.* });
    }

    /// The same for a page of vectors.
    pub fn on_vectors(self: *Search, page_number: u32, page: []const u8) void {
        self.awaited -= 1;
        if (self.rescoring.every) every.on_page(self, page_number, page) else rescoring_file.on_page(self, page_number, page);
    }

    fn hold(self: *Search, held: Held) Fate {
        if (self.held_count < self.held.len) {
            self.held[self.held_count] = held;
            self.held_count += 1;
            return .held;
        }
        const oldest = &self.held[self.held_oldest];
        self.held_oldest = (self.held_oldest + 1) % @as(u32, @intCast(self.held.len));
        const given_up = oldest.*;
        oldest.* = held;
        self.pages.remove(given_up.page);
        return .{ .exchanged = given_up.buffer };
    }

    /// The page at this place of those held is needed no more, but may be read again.
    pub fn let_go(self: *Search, place: u32) void {
        const held = self.held[place];
        self.pages.remove(held.page);
        self.given_up[self.given_up_count] = held.buffer;
        self.given_up_count += 1;
        self.held_count -= 1;
        self.held[place] = self.held[self.held_count];
        self.held_oldest = 0;
    }

    pub fn held_pages(self: *const Search) []const Held {
        return self.held[0..self.held_count];
    }

    pub fn unmark(self: *Search, vertex: u32) void {
        for (self.list.slice(), 0..) |*candidate, place| {
            if (candidate.vertex() == vertex) return self.list.unmark(@intCast(place));
        }
    }

    fn count_used(self: *Search) void {
        const directory = &self.shared.reader.directory;
        for (self.list.slice()) |candidate| {
            if (self.pages.contains(directory.page_of(candidate.vertex()))) self.cost.records_used += 1;
        }
    }
};

/// The pages a query has asked for; small, by open addressing.
pub const PageSet = struct {
    table: []u32,
    count: u32 = 0,

    const capacity = 1 << 14;
    const empty = std.math.maxInt(u32);

    pub fn init(allocator: std.mem.Allocator) error{OutOfMemory}!PageSet {
        const table = try base.alloc_untouched(allocator, u32, capacity);
        @memset(table, empty);
        return .{ .table = table };
    }

    pub fn deinit(self: *PageSet, allocator: std.mem.Allocator) void {
        base.free_untouched(allocator, self.table);
    }

    pub fn reset(self: *PageSet) void {
        if (self.count > 0) @memset(self.table[0..self.used_size()], empty);
        self.count = 0;
    }

    // Few pages live in the first entries only, so that clearing stays cheap.
    fn used_size(self: *const PageSet) usize {
        return if (self.count <= small_max) small_size else self.table.len;
    }
    const small_size = 512;
    const small_max = 256;

    fn start_of(page: u32, size: usize) usize {
        return ((page *% 0x9e3779b1) >> 16) & (size - 1);
    }

    fn find(self: *const PageSet, page: u32, size: usize) usize {
        var at = start_of(page, size);
        while (self.table[at] != empty and self.table[at] != page) at = (at + 1) & (size - 1);
        return at;
    }

    /// Takes a page out again: those behind it in its run move up.
    pub fn remove(self: *PageSet, page: u32) void {
        const size = self.used_size();
        var hole = self.find(page, size);
        if (self.table[hole] != page) return;
        var at = hole;
        while (true) {
            at = (at + 1) & (size - 1);
            const moved = self.table[at];
            if (moved == empty) break;
            const home = start_of(moved, size);
            // It may move into the hole unless its own place lies between the two.
            if ((at -% home) & (size - 1) >= (at -% hole) & (size - 1)) {
                self.table[hole] = moved;
                hole = at;
            }
        }
        self.table[hole] = empty;
        // The count only says how far the table is cleared; it stays.
    }

    pub fn contains(self: *const PageSet, page: u32) bool {
        return self.table[self.find(page, self.used_size())] == page;
    }

    /// True when the page was not there; false also when the set is full, so that nothing is read without end.
    pub fn insert(self: *PageSet, page: u32) bool {
        const at = self.find(page, self.used_size());
        if (self.table[at] == page) return false;
        if (self.count == capacity / 2) return false;
        if (self.count == small_max) {
            var pages: [small_max]u32 = undefined;
            var found: usize = 0;
            for (self.table[0..small_size]) |*slot| {
                if (slot.* == empty) continue;
                pages[found] = slot.*;
                found += 1;
                slot.* = empty;
            }
            self.count += 1;
            for (pages[0..found]) |old| self.table[self.find(old, self.table.len)] = old;
            self.table[self.find(page, self.table.len)] = page;
            return true;
        }
        self.table[at] = page;
        self.count += 1;
        return true;
    }
};

test "a page set agrees with a map, small and large" {
    var set = try PageSet.init(std.testing.allocator);
    defer set.deinit(std.testing.allocator);
    var prng = std.Random.DefaultPrng.init(std.testing.random_seed);
    for ([_]u32{ 10, 255, 256, 257, 3000, 5 }) |count| {
        set.reset();
        var model: std.AutoHashMapUnmanaged(u32, void) = .empty;
        defer model.deinit(std.testing.allocator);
        for (0..count) |_| {
            const page = prng.random().uintLessThan(u32, 5000);
            const new = !(try model.getOrPut(std.testing.allocator, page)).found_existing;
            try std.testing.expectEqual(!new, set.contains(page));
            try std.testing.expectEqual(new, set.insert(page));
            try std.testing.expect(set.contains(page));
        }
    }
}
