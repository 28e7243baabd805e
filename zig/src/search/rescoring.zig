//! The last tier: what codes have found is scored again from the vectors themselves, where they are stored.
//!
//! When a search has nothing left to read of pages.bin, its results are estimates: the k nearest, and some behind them
//! (`spare`). Each has a lower and an upper bound, from the σ of full codes and what rounding adds. Whatever may be among
//! the k nearest has a lower bound that reaches the k-th upper bound: the pages of vectors.bin with those are read, all
//! at once, as far as a round may. What was scored knows its distance, so the bounds of later rounds are tighter. In the
//! end k results stand with their distances, and every other that was held has been excluded.
const std = @import("std");
const base = @import("base");
const index = @import("index");
const exact = @import("exact.zig");
const parameters_file = @import("parameters.zig");
const state = @import("search_state.zig");
const Search = state.Search;

/// Estimates held beyond the k nearest. Where more of them than this lie within their error of the k-th (many copies of one
/// vector), those behind are given up.
pub const spare = 256;
pub const held_max = parameters_file.k_max + spare;

/// Standard deviations of a full code's error within which its distance is taken to lie. Two neighbors change places
/// wrongly only where their errors together are twice that, which is 4.2 deviations of their difference.
const deviations = 3;
/// Root mean square of what rounding F to 16 bits leaves (quant.RecordFactors), the largest; of rounding to a step, and of
/// the few additions in float32 behind an estimate.
const factor_rounding = 1.6e-5;
const step_rounding = 0.29;
const float_rounding = 1e-6;

const Held = struct {
    vertex: u32,
    scored: bool = false,
    /// Of what is compared; both are the distance once it is known.
    lower: f64,
    upper: f64,
    /// As users see it.
    distance: f64 = 0,
};

pub const Rescoring = struct {
    /// Has begun; the search has finished with codes.
    active: bool = false,
    /// Results hold distances as users see them.
    ended: bool = false,
    held: []Held,
    count: u32 = 0,
    /// Room to look for the k-th upper bound.
    uppers: []f64,
    query2: f64 = 0,
    /// All vectors are looked at (every.zig), from this page on.
    every: bool = false,
    next_page: u32 = 0,

    pub fn init(allocator: std.mem.Allocator, reader: *const index.Reader) error{OutOfMemory}!Rescoring {
        const room: usize = if (reader.vectors == null) 0 else held_max;
        const held = try base.alloc_untouched(allocator, Held, room);
        errdefer base.free_untouched(allocator, held);
        return .{ .held = held, .uppers = try base.alloc_untouched(allocator, f64, room) };
    }

    pub fn deinit(self: *Rescoring, allocator: std.mem.Allocator) void {
        base.free_untouched(allocator, self.held);
        base.free_untouched(allocator, self.uppers);
    }

    pub fn reset(self: *Rescoring) void {
        self.active = false;
        self.ended = false;
        self.count = 0;
        self.every = false;
        self.next_page = 0;
    }

    /// A vertex with its distance, among the k nearest in order if it is one of them.
    pub fn take(self: *Rescoring, k: u32, vertex: u32, distance: f64) void {
        const found: Held = .{ .vertex = vertex, .scored = true, .lower = distance, .upper = distance, .distance = distance };
        if (self.count == k) {
            if (!nearer({}, found, self.held[k - 1])) return;
        } else self.count += 1;
        const place = std.sort.lowerBound(Held, self.held[0 .. self.count - 1], found, order);
        std.mem.copyBackwards(Held, self.held[place + 1 .. self.count], self.held[place .. self.count - 1]);
        self.held[place] = found;
    }
};

/// Equal distances by lower vertex.
fn nearer(_: void, a: Held, b: Held) bool {
    return if (a.distance == b.distance) a.vertex < b.vertex else a.distance < b.distance;
}

fn order(a: Held, b: Held) std.math.Order {
    return if (nearer({}, a, b)) .lt else .gt;
}

/// Codes have said what they can.
pub fn begin(search: *Search) void {
    const self = &search.rescoring;
    take_query(search);
    for (search.results.slice(), self.held[0..search.results.len]) |candidate, *held|
        held.* = bounds_of(search, candidate.vertex(), candidate.distance);
    self.count = search.results.len;
    // Nothing of pages.bin is looked at any more.
    while (search.held_count > 0) search.let_go(search.held_count - 1);
}

/// The query as it was given, in place of what was made of it for codes.
pub fn take_query(search: *Search) void {
    search.rescoring.active = true;
    index.space.convert(search.given_dtype, search.given, search.row);
    search.rescoring.query2 = exact.sum_squares(search.row);
}

/// Wants the next pages of vectors.bin, or ends the search.
pub fn step(search: *Search) state.Want {
    choose(search);
    if (search.wanted_count == 0) {
        finish(search);
        return .done;
    }
    search.cost.rounds += 1;
    return .pages;
}

fn choose(search: *Search) void {
    const self = &search.rescoring;
    const geometry = search.shared.reader.vectors.?.geometry;
    const reach = @min(kth_upper(search), search.bound.distance);
    search.wanted_file = .vectors;
    for (self.held[0..self.count]) |*held| {
        if (held.scored or held.lower > reach) continue;
        const page = geometry.page_of(held.vertex);
        if (std.mem.indexOfScalar(u32, search.wanted[0..search.wanted_count], page) != null) continue;
        if (search.wanted_count == search.parameters.burst_max) break;
        search.wanted[search.wanted_count] = page;
        search.wanted_count += 1;
    }
}

fn kth_upper(search: *const Search) f64 {
    const self = &search.rescoring;
    const k = search.parameters.k;
    if (self.count < k) return std.math.inf(f64);
    const uppers = self.uppers[0..self.count];
    for (uppers, self.held[0..self.count]) |*upper, held| upper.* = held.upper;
    std.mem.sortUnstable(f64, uppers, {}, std.sort.asc(f64));
    return uppers[k - 1];
}

/// A page that was wanted has arrived and is whole: every held vector on it is scored.
pub fn on_page(search: *Search, page_number: u32, page: []const u8) void {
    const self = &search.rescoring;
    const reader = search.shared.reader;
    const geometry = reader.vectors.?.geometry;
    for (self.held[0..self.count]) |*held| {
        if (held.scored or geometry.page_of(held.vertex) != page_number) continue;
        held.scored = true;
        held.distance = exact.distance(reader.metric, reader.dtype, search.row, self.query2, geometry.row(page, held.vertex));
        held.lower = held.distance * index.space.compared_scale(reader.metric);
        held.upper = held.lower;
    }
}

/// The nearest of what was scored take the place of the estimates.
pub fn finish(search: *Search) void {
    const self = &search.rescoring;
    var scored: u32 = 0;
    for (self.held[0..self.count]) |held| {
        if (!held.scored) continue;
        self.held[scored] = held;
        scored += 1;
    }
    std.mem.sortUnstable(Held, self.held[0..scored], {}, nearer);
    search.results.len = @min(scored, search.parameters.k);
    for (self.held[0..search.results.len], search.results.items[0..search.results.len]) |held, *result|
        result.* = .{ .distance = @floatCast(held.distance), .tagged = held.vertex };
    self.ended = true;
}

/// Between which distances a vertex lies whose full code says `estimate`.
fn bounds_of(search: *const Search, vertex: u32, estimate: f32) Held {
    const query = &search.query;
    const codes = &search.shared.reader.codes;
    const norm2 = codes.norm2_of(vertex);
    const norm: f64 = @sqrt(norm2);
    const query_norm: f64 = @sqrt(query.norm2);
    const term: f64 = @abs(query.terms[codes.center_ids[vertex]]);
    const nearest: f64 = estimate;
    if (query.form == .product) {
        const inner = 2 * norm * query_norm;
        const error_ = deviations * (query.sigma_full(norm2, 0) + factor_rounding * inner + step_rounding * 2 * norm * query.fine_step) +
            float_rounding * (term + inner + @abs(nearest));
        return .{ .vertex = vertex, .lower = nearest - error_, .upper = nearest + error_ };
    }
    // The error grows with the way d from the vertex to the query: |estimate − d²| ≤ slope·d + rounding, solved for d.
    const way: f64 = @sqrt(@max(0, nearest));
    const inner = 2 * norm * (way + norm);
    const rounding = deviations * (factor_rounding * inner + step_rounding * 2 * norm * query.fine_step) +
        float_rounding * (term + inner + way * query_norm + way * way);
    const slope: f64 = deviations * query.sigma_full(norm2, 1);
    const least = @max(0, nearest - rounding);
    const most = @max(0, nearest + rounding);
    const low = (@sqrt(slope * slope + 4 * least) - slope) / 2;
    const high = (@sqrt(slope * slope + 4 * most) + slope) / 2;
    return .{ .vertex = vertex, .lower = low * low, .upper = high * high };
}
