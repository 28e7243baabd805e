//! What recall = 1 means: the stored vector of every row that may be an answer is scored, page by page.
//!
//! Codes know their error as a deviation. The bound that nothing can break (Cauchy and Schwarz) is some eleven deviations
//! wide, and within that nearly all rows lie; so only the vectors themselves prove an answer. Pages on which nothing
//! passes the filter are not read.
const std = @import("std");
const exact = @import("quant").exact;
const rescoring = @import("rescoring.zig");
const filter_room = @import("filter");
const index = @import("index");
const calibration = @import("calibration.zig");
const parameters_file = @import("parameters.zig");
const state = @import("search_state.zig");
const Search = state.Search;

pub const Every = struct {
    /// The k nearest of what was scored, in order.
    neighbors: rescoring.Neighbors,
    next_page: u32 = 0,
};

pub fn begin(search: *Search) void {
    search.change(.{ .every = .{ .neighbors = .init(search) } });
}

/// Wants the next pages of vectors.bin, or ends the search.
pub fn step(search: *Search) state.Want {
    const self = &search.state.every;
    const round = &search.round;
    const reader = search.shared.reader;
    const geometry = reader.vectors.?.geometry;
    const page_count = geometry.page_count(reader.n());
    while (round.count < search.parameters.burst_max and self.next_page < page_count) : (self.next_page += 1) {
        const rows = rows_of(search, self.next_page);
        if (search.request.filter) |filter| if (!any_passes(filter, rows.first, rows.end)) continue;
        round.add(self.next_page);
    }
    if (round.count == 0) return self.neighbors.finish(search);
    search.cost.rounds += 1;
    return .pages;
}

/// A page that was wanted has arrived and is whole.
pub fn on_page(search: *Search, page_number: u32, page: []const u8) void {
    const neighbors = &search.state.every.neighbors;
    const reader = search.shared.reader;
    const geometry = reader.vectors.?.geometry;
    const rows = rows_of(search, page_number);
    for (rows.first..rows.end) |number| {
        const vertex: u32 = @intCast(number);
        if (vertex == search.request.excluded) continue;
        if (search.request.filter) |filter| if (!filter.passes(vertex)) continue;
        const distance = exact.distance(reader.metric, reader.dtype, search.row, neighbors.query2, geometry.row(page, vertex));
        search.cost.records_scored += 1;
        neighbors.take(search.parameters.k, vertex, distance);
    }
}

const Rows = struct { first: u32, end: u32 };

fn rows_of(search: *const Search, page: u32) Rows {
    const rows_per_page = search.shared.reader.vectors.?.geometry.rows_per_page;
    const first = page * rows_per_page;
    return .{ .first = first, .end = @intCast(@min(@as(u64, first) + rows_per_page, search.shared.reader.n())) };
}

/// Whether a filter lets any of these vertices through.
pub fn any_passes(filter: *const filter_room.Filter, first: u32, end: u32) bool {
    var at = first;
    while (at < end) {
        const word = filter.matching_word(at / 64) >> @intCast(at % 64);
        const width = @min(64 - at % 64, end - at);
        if (word << @intCast(64 - width) != 0) return true;
        at += width;
    }
    return false;
}

/// What it costs without a filter.
pub fn expected(reader: *const index.Reader, parameters: *const parameters_file.Parameters) ?calibration.Expected {
    const vectors = reader.vectors orelse return null;
    const pages: f32 = @floatFromInt(vectors.geometry.page_count(reader.n()));
    const burst: f32 = @floatFromInt(parameters.burst_max);
    return .{ .recall = 1, .reads = pages, .rounds = @ceil(pages / burst), .scored = @floatFromInt(reader.n()) };
}
