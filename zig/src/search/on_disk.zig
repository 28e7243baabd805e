//! Links on disk: cache-aware beam search (VeloANN, algorithm 2) over the same state. The nearest candidates that were
//! not followed form the look-ahead set. The nearest one of it that is at hand (on a page that the query holds, or in
//! the cache) is followed; when none is, the pages of all of them are asked for. A query waits only then.
//!
//! Beyond the paper:
//! - A search starts near: vertices close in id are close in space (placement order), so the codes of whole stretches
//!   of ids around the best entry points are looked through before the first read (`look_around`).
//! - A page is read only for a candidate that may still matter: one whose estimate, less some σ, reaches the k-th best
//!   full distance. What is at hand is followed as long as it stands in the list, for that costs no read.
//! - Every record of a page that was read is scored and may become a candidate, and a page stays at hand for as long as
//!   its query follows links (recent_pages.zig), so that a neighbor on the same page costs no second read.
const std = @import("std");
const state = @import("search_state.zig");
const cached = @import("cached.zig");
const lists = @import("list.zig");
const filter_plan = @import("filter_plan.zig");
const filtered = @import("filtered.zig");
const recent_pages = @import("recent_pages.zig");
const Pending = @import("pending.zig").Pending;
const Search = state.Search;

/// Entry points around which codes are looked through: more save less than a read.
const stretches_max = 4;
/// The same beside a larger part: the codes of more stretches stand for reads on the way in.
const stretches_bounded_max = 8;
/// What is not read is not followed, and the way to what lies within the bound of other parts (company.zig) begins beyond it:
/// that bound holds once so many rows are known that lie nearer than where the way would go on.
const way_in = 2;

/// What a way in takes, in reads: some four, and that they wait for one another.
const reads_in = 8;

/// Within the bound of a larger part: the way in would take more than a look at all codes.
pub fn prefers_scan(search: *const Search) bool {
    return search.shared.plan == .links_on_disk and is_beside(search) and
        filter_plan.scans_within_reads(search.shared, reads_in);
}

/// Most answers lie in another part.
fn is_beside(search: *const Search) bool {
    return search.request.company == .smaller;
}

/// It keeps as many candidates as navigation and reads by the same bounds.
pub fn scan(search: *Search) void {
    search.parameters.sigma = search.parameters.sigma_on_disk;
    filtered.look_at_all(search);
}

/// Offers all vertices near in id to the best entry points, which are named by their places. As many a stretch as there are vertices to an entry point,
/// so with the square root of n.
pub fn look_around(search: *Search, best: []const lists.Candidate) void {
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

/// What only a search over links on disk has.
pub const Walk = struct {
    pending: Pending,
    recent: recent_pages.RecentPages,

    /// Keeps a page at hand; one that goes for it may be read again.
    pub fn hold(self: *Walk, search: *Search, page: recent_pages.Page) state.Fate {
        const former = self.recent.add(page) orelse return .hold;
        search.pages.remove(former.number);
        return .{ .exchange = former.buffer };
    }
};

pub fn step(search: *Search) state.PageError!state.Want {
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
    if (distance <= @min(bound, search.told)) return true;
    const sigma = search.query.sigma_upper(&search.shared.reader.codes, candidate.vertex(), distance);
    const least = distance - search.parameters.sigma_on_disk * sigma;
    if (least > bound) return false;
    return least <= search.told or least <= search.results.nth(@min(way_in, search.parameters.k));
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

fn follow_at_hand(search: *Search, vertex: u32) state.PageError!void {
    const reader = search.shared.reader;
    search.cost.expanded += 1;
    const walk = &search.state.disk;
    if (walk.recent.find(reader.directory.page_of(vertex))) |place| {
        const view = &walk.recent.slots[place].view;
        const list = try view.list(vertex - view.first_vertex);
        const ids = reader.adjacency.decode(vertex, list.bytes, list.length, reader.n(), &search.neighbors) catch return error.BadList;
        return search.follow(ids);
    }
    // Another query's insertion may have taken the slot since the look: then the vertex is a candidate again.
    const cache = search.shared.cache orelse return follow_later(search, vertex);
    const pin = cache.peek(vertex) orelse return follow_later(search, vertex);
    defer cache.release(pin);
    const found = cached.score(search, vertex, pin.bytes());
    const ids = reader.adjacency.decode(vertex, found.list.ptr, @intCast(found.list.len), reader.n(), &search.neighbors) catch return error.BadList;
    search.follow(ids);
    search.take_pending();
}

fn follow_later(search: *Search, vertex: u32) void {
    for (search.list.slice(), 0..) |candidate, place| {
        if (candidate.vertex() == vertex) return search.list.unmark(@intCast(place));
    }
}
