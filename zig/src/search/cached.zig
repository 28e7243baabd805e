//! The record cache as a query sees it: what it answers without a read, and what stays in it of a page that was read.
const std = @import("std");
const builtin = @import("builtin");
const layout = @import("layout");
const quant = @import("quant");
const cache_room = @import("cache");
const record = @import("record.zig");
const state = @import("search_state.zig");
const Search = state.Search;

/// Scores a vertex by its cached record, where there is one. True when it was there, now or before.
pub fn answer(search: *Search, vertex: u32) bool {
    const cache = search.shared.cache orelse return false;
    if (search.from_cache.contains(vertex)) return true;
    const pin = cache.peek(vertex) orelse return false;
    defer cache.release(pin);
    _ = score(search, vertex, pin.bytes());
    return true;
}

/// Scores a record that the query asked for, and with it what else of its page is cached, as the page itself would
/// have brought them: a query that is asked again finds what it found. Returns the record.
pub fn score(search: *Search, vertex: u32, bytes: []const u8) record.Record {
    const found = record.read(bytes, search.shared.reader.pages_header.lower_bytes);
    if (search.from_cache.insert(vertex)) {
        search.cost.cache_hits += 1;
        score_once(search, vertex, found);
        score_page(search, vertex);
    }
    return found;
}

fn score_page(search: *Search, vertex: u32) void {
    const cache = search.shared.cache.?;
    const directory = &search.shared.reader.directory;
    const page = directory.page_of(vertex);
    const first = directory.starts[page];
    for (first..first + directory.record_count(page)) |other_usize| {
        const other: u32 = @intCast(other_usize);
        if (!cache.contains(other) or search.from_cache.contains(other)) continue;
        const pin = cache.peek(other) orelse continue;
        defer cache.release(pin);
        if (!search.from_cache.insert(other)) continue;
        score_once(search, other, record.read(pin.bytes(), search.shared.reader.pages_header.lower_bytes));
    }
}

fn score_once(search: *Search, vertex: u32, found: record.Record) void {
    if (vertex == search.request.excluded) return;
    var distance: [1]f32 = undefined;
    search.query.estimate_records(&search.shared.reader.codes, &.{vertex}, &.{found.lower}, &.{found.factors}, &distance);
    const passes = if (search.request.filter) |filter| filter.passes(vertex) else true;
    if (passes) _ = search.results.insert_once(vertex, distance[0]);
    const pending = search.pending() orelse return;
    if (distance[0] < search.list.bound()) pending.add(vertex, distance[0]);
}

/// What stays of a page that was read: the records that were asked for (candidates within the bound, and those that entered
/// the results), and those of their colors (VeloANN, §3.3).
pub fn keep(search: *Search, cache: *cache_room.Cache, view: *const layout.page.View, full: []const f32) state.PageError!void {
    var wanted: [layout.page.records_max]bool = @splat(false);
    const bound = @min(search.results.bound(), search.told);
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
        var bytes: [record.bytes_max]u8 = undefined;
        const written = record.write(&bytes, view.lower[i * lower_bytes ..][0..lower_bytes], factors_of(view, i), list.bytes[0..list.length]) orelse continue;
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
