//! The subsearches of one query, which search its segments together: one bound, and one burst.
//!
//! A segment alone would read for its own k nearest, and the segments together for as many times k as there are segments. So before
//! any subsearch chooses pages all of them navigate, and each chooses for the k-th nearest that all of them know (`reach`). Their
//! pages are asked for at once, and subsearches with links in memory go on together once all of them are there. A subsearch with
//! links on disk goes on with whatever arrives for it, as it would alone; so does one that walks from page to page, within the
//! bound of one list over the candidates of all.
//!
//! A single subsearch is stepped directly, without any of this.
const std = @import("std");
const builtin = @import("builtin");
const index = @import("index");
const filter_plan = @import("filter_plan.zig");
const job_file = @import("job.zig");
const lists = @import("list.zig");
const parameters = @import("parameters.zig");
const Parameters = parameters.Parameters;
const query_file = @import("query.zig");
const SegmentSearch = job_file.SegmentSearch;

/// The subsearches of one slot.
pub const SegmentSearches = struct {
    segments: []const job_file.JobSegment,
    /// Of the slot among those of all workers.
    place: usize,

    pub inline fn at(self: SegmentSearches, number: usize) *SegmentSearch {
        return &self.segments[number].segment.searches[self.place];
    }

    /// Before a query begins in them.
    pub fn prepare(self: SegmentSearches) void {
        for (self.segments) |*one| one.segment.prepare(self.place);
    }

    /// After a query has ended in them.
    pub fn give_back(self: SegmentSearches) void {
        for (self.segments) |*one| one.segment.give_back(self.place);
    }

    pub inline fn count(self: SegmentSearches) usize {
        return self.segments.len;
    }
};

/// Assigns each of several segments its role. The largest, which holds most answers, comes first.
pub fn introduce(segments: []job_file.JobSegment) void {
    var largest: usize = 0;
    var on_disk: u32 = 0;
    var rows: f32 = 0;
    for (segments) |*one| rows += @floatFromInt(one.segment.shared.reader.n());
    for (segments, 0..) |*one, i| {
        one.role = .smaller;
        one.share = @as(f32, @floatFromInt(one.segment.shared.reader.n())) / rows;
        on_disk += @intFromBool(one.segment.shared.plan == .links_on_disk);
        if (one.segment.shared.reader.n() > segments[largest].segment.shared.reader.n()) largest = i;
    }
    std.mem.swap(job_file.JobSegment, &segments[0], &segments[largest]);
    segments[0].role = .largest;
    for (segments) |*one| one.held_max /= @max(1, on_disk);
    for (segments[1..]) |*one| accompany(&one.parameters, &segments[0].parameters);
    widen(&segments[0]);
}

/// Measurements of the largest segment hold for all: a list that finds so many among more rows finds as many among fewer,
/// and of few rows nothing was measured. Beside the largest hardly any page is read for other answers, so none comes with one: the
/// bound is as wide as with a filter that few rows pass.
fn accompany(own: *Parameters, largest: *const Parameters) void {
    own.list_size = @min(own.list_size, largest.list_size);
    if (!own.sigma_by_plan) return;
    const share = std.math.lerp(filter_plan.sigma_share, 1, alone_share(own.k));
    const least = @max(filter_plan.sigma_least, share * parameters.sigma_of_scan(own));
    own.sigma = @max(parameters.sigma_of(own.list_size), least);
    own.sigma_on_disk = @max(parameters.sigma_on_disk_of(own.list_size), least);
}

/// The bound that others know may leave out what the largest segment alone would have read: the more of the rows they hold, and
/// the fewer answers there are.
fn widen(largest: *job_file.JobSegment) void {
    const own = &largest.parameters;
    if (!own.sigma_by_plan) return;
    own.sigma = @max(own.sigma, alone_share(own.k) * (1 - largest.share) * parameters.sigma_of_scan(own));
}

/// The share of answers that lie at the bound itself, with no others whose pages they could come with: 1 for the nearest
/// alone, 0 from ten on.
fn alone_share(k: u32) f32 {
    return 1 - @as(f32, @floatFromInt(@min(k, 10) - 1)) / 9;
}

/// Steps those that can go on; done: none of them wants anything more.
pub fn step(subsearches: SegmentSearches, k: u32) query_file.PageError!query_file.Want {
    if (subsearches.count() == 1) {
        const subsearch = subsearches.at(0);
        const want = try subsearch.search.step();
        subsearch.ended = want == .done;
        return want;
    }
    if (try step_together(subsearches, k, .by_what_is_known)) return .pages;
    // Nothing is on its way that could bring full distances in the place of estimates.
    if (try step_together(subsearches, k, .for_good)) return .pages;
    if (builtin.mode == .Debug) for (0..subsearches.count()) |i| std.debug.assert(subsearches.at(i).ended);
    return .done;
}

const Ending = enum { by_what_is_known, for_good };

/// True where some subsearch goes on once pages arrive.
fn step_together(subsearches: SegmentSearches, k: u32, ending: Ending) query_file.PageError!bool {
    const together = is_complete(subsearches);
    for (0..subsearches.count()) |i| {
        const subsearch = subsearches.at(i);
        if (!is_due(subsearch, together)) continue;
        const search = &subsearch.search;
        if (i > 0 and search.beside == null) search.beside = .init(reach(subsearches, k).distance, search.list.limit, search.shared.reader.n(), subsearches.at(0).search.shared.reader.n());
        try subsearch.search.navigate();
    }
    var known = reach(subsearches, k);
    share_list(subsearches);
    var all_coded = true;
    for (0..subsearches.count()) |i| {
        const subsearch = subsearches.at(i);
        if (i == 1) known = reach(subsearches, k);
        if (is_due(subsearch, together) and subsearch.search.state != .coded and !is_early(subsearches, i)) {
            const bounded = is_bounded(&subsearch.search, known);
            subsearch.search.reported = if (bounded) known.distance else std.math.inf(f32);
            subsearch.search.reported_is_estimate = bounded and !known.is_full and ending == .by_what_is_known;
            subsearch.due = subsearch.search.reported_is_estimate;
            subsearch.ended = (try subsearch.search.step()) == .done;
        }
        all_coded = all_coded and subsearch.search.has_coded();
    }
    if (all_coded and together) try step_exact(subsearches, k);
    for (0..subsearches.count()) |i| {
        const subsearch = subsearches.at(i);
        if (!subsearch.ended and (subsearch.in_flight > 0 or subsearch.search.round.awaited > 0)) return true;
    }
    return false;
}

/// Whether nothing is on its way for those that wait for all of their pages.
pub fn is_complete(subsearches: SegmentSearches) bool {
    for (0..subsearches.count()) |i| {
        const subsearch = subsearches.at(i);
        if (subsearch.waits_for_all() and subsearch.in_flight > 0) return false;
    }
    return true;
}

/// A traversal of links on disk finds the nearest late: until then the other subsearches would read pages of farther rows.
fn is_early(subsearches: SegmentSearches, number: usize) bool {
    if (number == 0) return false;
    const first = &subsearches.at(0).search;
    return first.shared.plan == .links_on_disk and !first.has_coded();
}

fn is_due(subsearch: *const SegmentSearch, together: bool) bool {
    if (subsearch.ended) return false;
    return if (subsearch.waits_for_all()) together else subsearch.due;
}

/// All codes are evaluated in all segments: candidates for the k nearest of all are scored by their vectors.
fn step_exact(subsearches: SegmentSearches, k: u32) query_file.PageError!void {
    for (0..subsearches.count()) |i| {
        const search = &subsearches.at(i).search;
        if (search.state == .coded) search.begin_rescoring();
    }
    const reported = kth_upper(subsearches, k);
    for (0..subsearches.count()) |i| {
        const subsearch = subsearches.at(i);
        if (subsearch.search.state != .rescore or subsearch.in_flight > 0) continue;
        subsearch.search.reported_upper = reported;
        subsearch.ended = (try subsearch.search.step()) == .done;
    }
}

/// With links on disk what is not read is not followed: there an estimate bounds nothing. What the codes of very few
/// rows, a page or two, err by is not known well enough to leave any out.
fn is_bounded(search: *const query_file.Search, known: Reach) bool {
    return search.shared.reader.n() > rows_unbounded and (known.is_full or (search.state != .disk and search.state != .walk));
}

const rows_unbounded = 100;

/// Candidates of all segments that walk stand in one list, as long as that of the largest segment. Estimates of records and of pages
/// do not compare: a page's nearest record is much nearer than its mean. So segments with codes of records have a list of their own.
fn share_list(subsearches: SegmentSearches) void {
    for ([_]bool{ false, true }) |has_records| share_list_of(subsearches, has_records);
}

fn share_list_of(subsearches: SegmentSearches, has_records: bool) void {
    const limit = subsearches.at(0).search.list.limit;
    var held: u64 = 0;
    for (0..subsearches.count()) |i| {
        if (walk_of(subsearches, i, has_records)) |search| held += search.list.len;
    }
    if (held < limit) return;
    // The least distance within which so many are.
    var least: i64 = std.math.minInt(i32);
    var most: i64 = std.math.maxInt(i32);
    while (least < most) {
        const middle = least + @divFloor(most - least, 2);
        var within: u64 = 0;
        for (0..subsearches.count()) |i| {
            if (walk_of(subsearches, i, has_records)) |search| within += lists.count_within(search.list.slice(), @intCast(middle));
        }
        if (within >= limit) most = middle else least = middle + 1;
    }
    const bound = lists.distance_of(@intCast(most));
    for (0..subsearches.count()) |i| {
        if (walk_of(subsearches, i, has_records)) |search| search.listed = bound;
    }
}

fn walk_of(subsearches: SegmentSearches, number: usize, has_records: bool) ?*query_file.Search {
    const search = &subsearches.at(number).search;
    if (search.state != .walk) return null;
    const own = if (search.shared.reader.page_products) |*products| products.has_records() else false;
    return if (own == has_records) search else null;
}

const Reach = struct { distance: f32, is_full: bool };

/// The k-th nearest that all subsearches together know: of full distances as soon as there are k, before that of estimates.
fn reach(subsearches: SegmentSearches, k: u32) Reach {
    var known: u64 = 0;
    for (0..subsearches.count()) |i| known += subsearches.at(i).search.results.len;
    const is_full = known >= k;
    var room: [job_file.segments_max]u32 = undefined;
    const next = room[0..subsearches.count()];
    @memset(next, 0);
    var last: f32 = std.math.inf(f32);
    for (0..k) |_| {
        var best: ?usize = null;
        last = std.math.inf(f32);
        for (0..subsearches.count()) |i| {
            const search = &subsearches.at(i).search;
            const distance = nth(search, is_full, next[i]) orelse continue;
            if (best != null and !(distance < last)) continue;
            best = i;
            last = distance;
        }
        next[best orelse return .{ .distance = std.math.inf(f32), .is_full = false }] += 1;
    }
    return .{ .distance = last, .is_full = is_full };
}

/// The distance at that rank among the results of a subsearch; ranks begin at 0.
fn nth(search: *const query_file.Search, is_full: bool, place: u32) ?f32 {
    if (is_full) return if (place < search.results.len) search.results.slice()[place].distance else null;
    const estimated = search.candidates();
    return if (place < estimated.len) estimated[place].distance() else null;
}

/// A distance within which k neighbors lie for certain.
fn kth_upper(subsearches: SegmentSearches, k: u32) f64 {
    var uppers: [job_file.segments_max][]const f64 = undefined;
    for (0..subsearches.count()) |i| uppers[i] = subsearches.at(i).search.uppers();
    var room: [job_file.segments_max]u32 = undefined;
    const next = room[0..subsearches.count()];
    @memset(next, 0);
    var last: f64 = std.math.inf(f64);
    for (0..k) |_| {
        var best: ?usize = null;
        for (uppers[0..subsearches.count()], 0..) |some, i| {
            if (next[i] == some.len) continue;
            if (best) |other| if (!(some[next[i]] < uppers[other][next[other]])) continue;
            best = i;
        }
        const one = best orelse return std.math.inf(f64);
        last = uppers[one][next[one]];
        next[one] += 1;
    }
    return last;
}

/// The answers of all subsearches and of the delta, the nearest first; of equal ones the earlier subsearch's, then the delta's.
pub const Merged = struct {
    subsearches: SegmentSearches,
    next_of: [job_file.segments_max]u32 = undefined,
    of_delta: []const job_file.Delta.Hit = &.{},
    delta_first: i64 = 0,

    pub const Hit = struct { vertex: i64, distance: f32 };

    pub fn of(subsearches: SegmentSearches) Merged {
        var merged: Merged = .{ .subsearches = subsearches };
        @memset(merged.next_of[0..subsearches.count()], 0);
        return merged;
    }

    /// Rows of the delta within the nearest that the subsearches found, as many as `room` takes.
    pub fn add(self: *Merged, delta: *const job_file.Delta, query: u64, room: []job_file.Delta.Hit) void {
        var known: Merged = .of(self.subsearches);
        var within: f32 = std.math.inf(f32);
        for (0..room.len) |i| {
            const hit = known.next() orelse break;
            if (i + 1 == room.len) within = hit.distance;
        }
        const found = delta.nearest(delta.context, query, within, room);
        self.of_delta = room[0..found.count];
        self.delta_first = delta.first;
        self.subsearches.at(0).search.cost.estimates += found.measured;
    }

    pub fn next(self: *Merged) ?Hit {
        var best: ?Hit = null;
        var best_place: usize = 0;
        for (self.subsearches.segments, 0..) |*segment, i| {
            const search = &self.subsearches.at(i).search;
            const results = search.results.slice();
            if (self.next_of[i] == results.len) continue;
            const result = results[self.next_of[i]];
            const distance = if (search.is_exact()) result.distance else index.space.reported(search.shared.reader.metric, result.distance);
            if (best) |other| if (!(distance < other.distance)) continue;
            best = .{ .vertex = segment.first + result.vertex, .distance = distance };
            best_place = i;
        }
        if (self.of_delta.len > 0) {
            const one = self.of_delta[0];
            if (best == null or one.distance < best.?.distance) {
                self.of_delta = self.of_delta[1..];
                return .{ .vertex = self.delta_first + one.row, .distance = one.distance };
            }
        }
        if (best != null) self.next_of[best_place] += 1;
        return best;
    }
};
