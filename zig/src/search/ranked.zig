//! Less memory than codes of vectors take: a few codes of each page say which pages are read, and every record of these is
//! scored with its full code, which lies in the page (index/page_codes.zig).
//!
//! A page is as near as the nearest of its codes. Those of the coarsest level, one a page, leave out most pages before the finer
//! ones are looked at. The nearest pages, as many as the list is long, are then read in bursts. Nothing is navigated: links
//! between pages lead nowhere that their codes do not (docs/decisions/0021). With a filter only pages count on which something
//! passes; that is asked of those alone that would enter the list.
const std = @import("std");
const filter_room = @import("filter");
const quant = @import("quant");
const every = @import("every.zig");
const filter_plan = @import("filter_plan.zig");
const parameters_file = @import("parameters.zig");
const state = @import("search_state.zig");
const Parameters = parameters_file.Parameters;
const Shared = @import("shared.zig").Shared;
const Search = state.Search;
const assert = std.debug.assert;

/// Pages whose finer codes are looked at: at least one in so many, and several times as many as are read.
const looked_share = 8;
const looked_lists = 8;
/// Pages whose coarse codes tell where that bound lies.
const sampled_max = Search.fresh_max;

pub const Ranked = struct {
    /// The place in the list of the next page to read.
    next: u32 = 0,
};

pub fn begin(search: *Search) void {
    search.change(.{ .ranked = .{} });
    const filter = search.request.filter;
    if (filter) |one| if (one.estimate() == 0) return; // exact, and nothing passes
    const reader = search.shared.reader;
    const page_count = reader.directory.page_count();
    search.list.reset(if (filter) |one| pages_filtered(search.shared, one, &search.parameters) else search.parameters.list_size);
    const bound = coarse_bound(search, page_count, filter);
    var first: u32 = 0;
    while (first < page_count) {
        const count = @min(Search.fresh_max, page_count - first);
        for (search.fresh[0..count], first..) |*id, page| id.* = @intCast(page);
        estimate(search, &reader.page_codes.?.coarse, count);
        var near: [Search.fresh_max]u32 = undefined;
        var near_count: u32 = 0;
        for (search.distances[0..count], first..) |distance, page| {
            if (distance > bound) continue;
            near[near_count] = @intCast(page);
            near_count += 1;
        }
        rank(search, near[0..near_count], filter);
        first += count;
    }
}

/// Wants the next pages of the list, or ends.
pub fn step(search: *Search) state.Want {
    const self = &search.state.ranked;
    const round = &search.round;
    const listed = search.list.slice();
    while (self.next < listed.len and round.count < search.parameters.burst_max) : (self.next += 1) round.add(listed[self.next].vertex());
    if (round.count == 0) return .done;
    search.cost.rounds += 1;
    return .pages;
}

/// How many pages a search with a filter reads: answers lie farther than the pages they are on seem to. So many more as a list
/// without a filter would have to hold, less those on which nothing passes; and more where few pass, for then hardly two of the
/// answers share a page.
fn pages_filtered(shared: *const Shared, filter: *const filter_room.Filter, parameters: *const Parameters) u32 {
    const reader = shared.reader;
    const n: f64 = @floatFromInt(reader.n());
    const matches = @max(1, filter.estimate() * n);
    if (matches <= read_all_max) return @intFromFloat(@ceil(@max(matches, @as(f64, @floatFromInt(parameters.list_size)))));
    const case = filter_plan.Case.of(shared, filter, parameters);
    const some_pass = 1 - std.math.pow(f64, 1 - matches / n, n / @as(f64, @floatFromInt(reader.directory.page_count())));
    return @intFromFloat(@max(@as(f64, @floatFromInt(parameters_file.list_size_filtered(parameters))), @ceil(case.late_list_size() * some_pass * (1.25 - 0.25 * some_pass))));
}

/// What a search with a filter is expected to take.
pub fn expected_filtered(shared: *const Shared, filter: *const filter_room.Filter, parameters: *const Parameters) filter_plan.Cost {
    const reader = shared.reader;
    const pages: f64 = @floatFromInt(reader.directory.page_count());
    const reads = @min(pages, @as(f64, @floatFromInt(pages_filtered(shared, filter, parameters))));
    const each: f64 = @floatFromInt(reader.page_codes_kept());
    const looked = if (each > 1) @min(pages, @max(pages / looked_share, looked_lists * reads)) * each else 0;
    const estimate_ns = filter_plan.estimate_of_code_ns(@floatFromInt(reader.codes.params.entry_bytes()));
    return .{ .reads = reads, .estimates = pages + looked, .ns = (pages + looked) * estimate_ns + reads * filter_plan.read_ns };
}

/// So few matches are all read.
const read_all_max = 64;

/// Within which the coarse code of a page must lie for its finer ones to be looked at; of some pages, evenly drawn, as many lie
/// within as of all.
fn coarse_bound(search: *Search, page_count: u32, filter: ?*const filter_room.Filter) f32 {
    const of_pages = &search.shared.reader.page_codes.?;
    if (of_pages.count == 1) return std.math.inf(f32);
    const wanted = @max(page_count / looked_share, looked_lists * search.list.limit);
    const share = if (filter) |one| @max(one.estimate(), 1e-9) else 1;
    // Where few pages have anything that passes, as many of those.
    const looked = @as(f64, @floatFromInt(wanted)) / @min(1, share * @as(f64, @floatFromInt(search.shared.reader.n())) / @as(f64, @floatFromInt(page_count)));
    const sampled = @min(sampled_max, page_count);
    const place = looked * @as(f64, @floatFromInt(sampled)) / @as(f64, @floatFromInt(page_count));
    if (place >= @as(f64, @floatFromInt(sampled))) return std.math.inf(f32);
    for (search.fresh[0..sampled], 0..) |*id, i| id.* = @intCast(@as(u64, i) * page_count / sampled);
    estimate(search, &of_pages.coarse, sampled);
    std.mem.sortUnstable(f32, search.distances[0..sampled], {}, std.sort.asc(f32));
    return search.distances[@intFromFloat(place)];
}

/// Of these pages, which ascend, the nearest enter the list.
fn rank(search: *Search, pages: []const u32, filter: ?*const filter_room.Filter) void {
    const of_pages = &search.shared.reader.page_codes.?;
    const each = of_pages.count;
    const together = Search.fresh_max / each;
    assert(together > 0);
    var at: usize = 0;
    while (at < pages.len) : (at += together) {
        const some = pages[at..@min(pages.len, at + together)];
        for (some, 0..) |page, i| {
            for (search.fresh[i * each ..][0..each], 0..) |*id, number| id.* = page * each + @as(u32, @intCast(number));
        }
        estimate(search, &of_pages.fine, @intCast(some.len * each));
        for (some, 0..) |page, i| {
            const nearest = std.mem.min(f32, search.distances[i * each ..][0..each]);
            if (!(nearest < search.list.bound())) continue;
            if (filter) |one| if (!any_passes(search, one, page)) continue;
            _ = search.list.insert(page, nearest);
        }
    }
}

fn any_passes(search: *const Search, filter: *const filter_room.Filter, page: u32) bool {
    const directory = &search.shared.reader.directory;
    const first = directory.starts[page];
    return every.any_passes(filter, first, first + directory.record_count(page));
}

fn estimate(search: *Search, codes: *const quant.Codes, count: u32) void {
    search.query.estimate(codes, search.fresh[0..count], search.distances[0..count]);
    search.cost.estimates += count;
}
