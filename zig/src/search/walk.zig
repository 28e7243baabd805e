//! Traversal of pages whose tables name neighbors of their records (docs/decisions/0024): the state `walk`.
//!
//! Memory holds a few codes of each page and nothing for each vector. They give seeds, pages with an estimate. With more memory it
//! holds a code of each record: then the records of the nearest pages are candidates from the start. Every page that arrives is
//! processed at once: its records are scored, and the vertices in its table enter the candidate list with an estimate by their
//! product codes. The next page is that of the nearest candidate whose page was not requested, or the nearest seed.
//!
//! - The list compares estimates with estimates, so it is the bound: a seed beyond its last entry is not read, and the search
//!   ends when no candidate in it leads to another page.
//! - Few reads are in flight at first, when they are guesses, and more later. None waits for another, so an answer depends on
//!   the order of arrivals.
//! - A filter admits only vertices that pass to the candidate list. A second, short list holds any vertex: its pages are read for
//!   their tables. Seeds are pages with a row that passes. If few rows pass, all of their pages are read and nothing is traversed.
//!
//! Pages of format 6 have no tables. Their codes rank all pages, and the nearest are read, as many as the list is long.
const std = @import("std");
const builtin = @import("builtin");
const base = @import("base");
const layout = @import("layout");
const quant = @import("quant");
const filter_room = @import("filter");
const index = @import("index");
const filter_plan = @import("filter_plan.zig");
const lists = @import("list.zig");
const parameters_file = @import("parameters.zig");
const query_file = @import("query.zig");
const rescoring = @import("rescoring.zig");
const shared_file = @import("shared.zig");
const Search = query_file.Search;
const PageError = query_file.PageError;
const Want = query_file.Want;
const Filter = filter_room.Filter;
const PageProducts = index.PageProducts;
const assert = std.debug.assert;

/// Reads in flight for one query.
const in_flight_max = 32;
const in_flight_least = 2;
/// The square of their number at first, and its growth with each page that has arrived. Candidates known from codes of records are
/// hardly ever read in vain.
const Growth = struct { first: f32, each: f32 };
const growth: Growth = .{ .first = 4, .each = 2 };
const growth_with_records: Growth = .{ .first = 64, .each = 8 };
/// Seeds beside two for each entry of the list: more than a search reads.
const seeds_spare = 64;
/// Where codes of their records are looked at, one page in `seeds_share` within these: over sift100k 128 and 256 read 12.3 and 11.8
/// pages, over sift1m 400 and 800 read 20.4 and 18.4 (docs/decisions/0024).
const seeds_least = 128;
const seeds_most = 1024;
const seeds_share = 100;
/// Cells whose pages are compared, where there are so many; later one in `cells_share`.
const cells_least = 64;
const cells_share = 16;
const cells_most = 1024;
/// With codes of records: pages whose codes are compared, where there are so many; later one in `pages_share`.
const pages_least = 8192;
const pages_share = 16;
/// Number of pages by which prefetching is ahead: of page codes, and of codes of records.
const pages_ahead = 16;
const records_ahead = 3;
const cell_pages = layout.headers.PageProducts.cell_pages;
const together = lists.List.insert_max;

comptime {
    assert(cells_most <= parameters_file.list_size_max);
    assert(Search.fresh_max >= layout.page.records_max);
    assert(Search.fresh_max % together == 0 and Search.fresh_max >= layout.page.table_max + together);
}

/// Memory that the state points at.
pub const Room = struct {
    /// Pages by their estimates.
    seeds: lists.List,
    /// Vertices that fail the filter or pass it.
    leading: lists.List,
    products: ?Products,

    const Products = struct {
        query: quant.ProductQuery,
        /// Codes of vertices that were met for the first time, or of records or pages, one after the other.
        codes: []u8,
    };

    pub fn init(allocator: std.mem.Allocator, reader: *const index.Reader) error{OutOfMemory}!Room {
        var seeds = try lists.List.init(allocator, parameters_file.list_size_max);
        errdefer seeds.deinit(allocator);
        var leading = try lists.List.init(allocator, filter_plan.leading_max);
        errdefer leading.deinit(allocator);
        const of_pages = if (reader.page_products) |*found| found else return .{ .seeds = seeds, .leading = leading, .products = null };
        const codes = try base.alloc_untouched(allocator, u8, @as(usize, Search.fresh_max) * of_pages.product.parts + codes_padding);
        errdefer base.free_untouched(allocator, codes);
        return .{ .seeds = seeds, .leading = leading, .products = .{ .query = try .init(allocator, of_pages.product.parts), .codes = codes } };
    }

    /// Kernels look a little past the last code.
    const codes_padding = 64;

    pub fn deinit(self: *Room, allocator: std.mem.Allocator) void {
        self.seeds.deinit(allocator);
        self.leading.deinit(allocator);
        if (self.products) |*own| {
            own.query.deinit(allocator);
            base.free_untouched(allocator, own.codes);
        }
    }
};

pub const Walk = struct {
    room: *Room,
    /// Seeds are read whatever the list holds: no table leads to them.
    reads_all_seeds: bool = false,
    growth: Growth = growth,
    requested: u32 = 0,
    /// Pages on their way.
    flights: [parameters_file.burst_max]Flight = undefined,
    flight_count: u32 = 0,
    /// The longest chain of dependent reads that ended since the last step.
    chain: u32 = 0,

    const Flight = struct { page: u32, chain: u32 };

    fn add(self: *Walk, page: u32, chain: u32) void {
        self.flights[self.flight_count] = .{ .page = page, .chain = chain };
        self.flight_count += 1;
        self.requested += 1;
    }

    /// The page is in the page cache: nothing is read for it.
    pub fn take_from_cache(self: *Walk, page: u32) void {
        self.flight_of(page).chain -= 1;
    }

    fn arrive(self: *Walk, page: u32) void {
        const flight = self.flight_of(page);
        self.chain = @max(self.chain, flight.chain);
        self.flight_count -= 1;
        flight.* = self.flights[self.flight_count];
    }

    fn flight_of(self: *Walk, page: u32) *Flight {
        for (self.flights[0..self.flight_count]) |*flight| if (flight.page == page) return flight;
        unreachable; // only requested pages arrive
    }

    /// Reads that may be in flight: the first are guesses, later ones know more.
    fn most_in_flight(self: *const Walk, search: *const Search) u32 {
        const limit = search.parameters.burst_max;
        if (self.reads_all_seeds) return limit;
        const arrived: f32 = @floatFromInt(self.requested - self.flight_count);
        const wanted: u32 = @intFromFloat(@floor(@sqrt(self.growth.first + self.growth.each * arrived)));
        const share: u32 = @intFromFloat(@ceil(search.request.share * @as(f32, @floatFromInt(@min(wanted, in_flight_max)))));
        return @min(limit, @max(share, in_flight_least));
    }
};

/// The first step.
pub fn begin(search: *Search) void {
    const reader = search.shared.reader;
    const room = &search.room.walk.?;
    room.seeds.reset(1);
    room.leading.reset(1);
    search.change(.{ .walk = .{ .room = room } });
    const walk = &search.state.walk;
    const filter = search.request.filter;
    if (filter) |one| {
        if (one.estimate() == 0) return; // exact, and nothing passes
        search.list.reset(filter_plan.walk_list_size(search.shared, one, &search.parameters));
        room.leading.reset(filter_plan.walk_leading_size(search.shared, one, &search.parameters));
        if (filter_plan.plan_of(search.shared, one, &search.parameters) == .scan and read_matches(search, one)) return;
    }
    const products = if (reader.page_products) |*found| found else return rank(search, filter);
    walk.room.products.?.query.prepare(&products.product, search.row, reader.codes.form);
    if (products.has_records()) walk.growth = growth_with_records;
    const limit = search.list.limit;
    const cell_count: u32 = @intCast(products.cell_places.len);
    if (filter) |one| if (filter_plan.lists_matches(search.shared, one)) {
        room.seeds.reset(seeds_of(products, limit));
        var pages: MatchingPages = .init(search, one);
        while (pages.next()) |page| seed(search, products, page);
        return look_at_records(search, products);
    };
    if (products.has_records()) {
        room.seeds.reset(seeds_of(products, limit));
        seed_near_centers(search, products, filter);
        return look_at_records(search, products);
    }
    const looked = filter_plan.cells_looked(search.shared, filter, @max(cells_least, cell_count / cells_share), cells_most);
    // The list holds cells for a moment.
    search.list.reset(@min(looked, cell_count));
    estimate_cells(search, products, cell_count);
    room.seeds.reset(seeds_of(products, limit));
    for (search.list.slice()) |cell| seed_cell(search, products, cell.vertex(), filter);
    // Rows that pass may all be far from the query.
    if (filter != null and looked < cell_count and room.seeds.len < limit) {
        room.seeds.reset(seeds_of(products, limit));
        for (0..cell_count) |cell| seed_cell(search, products, @intCast(cell), filter);
    }
    search.list.reset(limit);
}

/// More seeds than a search reads.
fn seeds_of(products: *const PageProducts, list_size: u32) u32 {
    const page_count: u32 = @intCast(products.by_center.len);
    const spare = if (products.has_records()) std.math.clamp(page_count / seeds_share, seeds_least, seeds_most) else seeds_spare;
    return @min(2 * list_size + spare, parameters_file.list_size_max);
}

/// The records of seeds take their places, if memory has their codes.
fn look_at_records(search: *Search, products: *const PageProducts) void {
    if (!products.has_records()) return;
    const seeds = &search.room.walk.?.seeds;
    const directory = &search.shared.reader.directory;
    const bytes = products.product.parts;
    const codes = search.room.walk.?.products.?.codes;
    // Kernels estimate many codes at once faster than those of one page.
    var count: u32 = 0;
    const pages = seeds.slice();
    for (pages, 0..) |one, i| {
        if (i + records_ahead < pages.len) prefetch(record_codes_of(products, pages[i + records_ahead].vertex()));
        const page = one.vertex();
        const own = directory.record_count(page);
        if (count + own > Search.fresh_max) {
            offer_records(search, count);
            count = 0;
        }
        @memcpy(codes[count * bytes ..][0 .. own * bytes], record_codes_of(products, page)[0 .. own * bytes]);
        for (search.fresh[count..][0..own], directory.first_vertex(page)..) |*id, vertex| id.* = @intCast(vertex);
        count += own;
    }
    offer_records(search, count);
    seeds.reset(1);
}

/// The codes of a page's records; the end is unused if the page is not full.
fn record_codes_of(products: *const PageProducts, page: u32) []const u8 {
    const size = @as(usize, products.count) * products.product.parts;
    return products.record_codes[page * size ..][0..size];
}

/// Prefetches all cache lines of `bytes`.
inline fn prefetch(bytes: []const u8) void {
    var at: usize = 0;
    while (at < bytes.len) : (at += std.atomic.cache_line) @prefetch(bytes.ptr + at, .{});
}

/// Estimates the first `count` records of `fresh`, which are in no list, and offers them to the lists. Only records that enter a list
/// are marked as visited. A rejected record may be estimated again, and is rejected again, because the bound of a list never grows.
fn offer_records(search: *Search, count: u32) void {
    estimate_products(search, search.room.walk.?.products.?.codes.ptr, count);
    if (search.request.excluded != query_file.Request.excluded_none) {
        if (std.mem.indexOfScalar(u32, search.fresh[0..count], search.request.excluded)) |at| search.distances[at] = std.math.inf(f32);
    }
    var at: u32 = 0;
    while (at < count) : (at += together) {
        var entered = offer_some(search, search.fresh[at..][0..together], search.distances[at..][0..together], @min(together, count - at));
        while (entered != 0) : (entered &= entered - 1) _ = search.visited.insert(search.fresh[at + @ctz(entered)]);
    }
}

/// Offers the first `count` vertices to the lists. Returns a bit mask of those that entered one.
inline fn offer_some(search: *Search, vertices: *const [together]u32, distances: *const [together]f32, count: u32) u32 {
    const filter = search.request.filter orelse return search.list.insert_many(vertices, distances, count);
    var entered = search.state.walk.room.leading.insert_many(vertices, distances, count);
    for (vertices[0..count], distances[0..count], 0..) |vertex, distance, i| {
        if (!(distance < search.list.bound()) or !filter.passes(vertex)) continue;
        _ = search.list.insert(vertex, distance);
        entered |= @as(u32, 1) << @intCast(i);
    }
    return entered;
}

fn estimate_cells(search: *Search, products: *const PageProducts, cell_count: u32) void {
    var first: u32 = 0;
    while (first < cell_count) {
        const count = @min(Search.fresh_max, cell_count - first);
        estimate_products(search, products.cell_codes.ptr + @as(usize, first) * products.product.parts, count);
        for (search.fresh[0..count], first..) |*id, cell| id.* = @intCast(cell);
        insert_fresh(search, &search.list, count);
        first += count;
    }
}

/// The pages of a cell, those with a row that passes.
fn seed_cell(search: *Search, products: *const PageProducts, cell: u32, filter: ?*const Filter) void {
    const page_count = search.shared.reader.directory.page_count();
    const first = cell * cell_pages;
    const end = @min(first + cell_pages, page_count);
    const seeds = &search.room.walk.?.seeds;
    const step_pages = @min(cell_pages, Search.fresh_max / products.center_count);
    var page = first;
    while (page < end) {
        const some = @min(step_pages, end - page);
        estimate_products(search, codes_of(products, page), some * products.center_count);
        for (0..some) |i| {
            const nearest = nearest_of(search, products, @intCast(i));
            if (!(nearest < seeds.bound())) continue;
            const number = page + @as(u32, @intCast(i));
            if (filter) |one| if (!page_passes(search, one, number)) continue;
            _ = seeds.insert(number, nearest);
        }
        page += some;
    }
}

/// Pages around the nearest centers, those with a row that passes.
fn seed_near_centers(search: *Search, products: *const PageProducts, filter: ?*const Filter) void {
    @setRuntimeSafety(builtin.mode == .Debug); // measured (decisions/0007)
    const page_count: u32 = @intCast(products.by_center.len);
    const wanted = filter_plan.cells_looked(search.shared, filter, @max(pages_least, page_count / pages_share), page_count);
    const bytes = products.product.parts;
    const codes = search.room.walk.?.products.?.codes;
    var centers: shared_file.Centers = .init(search.shared.center_norms2, &search.query.terms);
    var looked: u32 = 0;
    // Pages of several centers are estimated together.
    var count: u32 = 0;
    while (centers.next()) |center| {
        if (looked >= wanted) {
            count = seed_pages(search, count);
            // Rows that pass may all be far from the query.
            if (filter == null or search.room.walk.?.seeds.len >= search.list.limit) break;
        }
        const pages = products.by_center[products.center_starts[center]..products.center_starts[center + 1]];
        looked += @intCast(pages.len);
        for (pages, 0..) |page, i| {
            if (i + pages_ahead < pages.len) @prefetch(codes_of(products, pages[i + pages_ahead]), .{});
            if (filter) |one| if (!page_passes(search, one, page)) continue;
            copy_code(codes.ptr + count * bytes, codes_of(products, page), bytes);
            search.fresh[count] = page;
            count += 1;
            if (count == Search.fresh_max) count = seed_pages(search, count);
        }
    }
    _ = seed_pages(search, count);
}

/// Estimates the first `count` pages of `fresh` and inserts them into the seeds. Returns 0, the number of pages left.
fn seed_pages(search: *Search, count: u32) u32 {
    estimate_products(search, search.room.walk.?.products.?.codes.ptr, count);
    insert_fresh(search, &search.room.walk.?.seeds, count);
    return 0;
}

fn seed(search: *Search, products: *const PageProducts, page: u32) void {
    estimate_products(search, codes_of(products, page), products.center_count);
    _ = search.room.walk.?.seeds.insert(page, nearest_of(search, products, 0));
}

/// The estimate of a page whose codes were estimated at that place. Records are farther than their center; of products their mean
/// is the center's.
fn nearest_of(search: *const Search, products: *const PageProducts, place: u32) f32 {
    const nearest = std.mem.min(f32, search.distances[place * products.center_count ..][0..products.center_count]);
    return if (search.shared.reader.codes.form == .distance) nearest + products.spread else nearest;
}

fn codes_of(products: *const PageProducts, page: u32) [*]const u8 {
    return products.codes.ptr + @as(usize, page) * products.center_count * products.product.parts;
}

/// Copies a code inline: for so few bytes the call of `@memcpy` costs more than the copy.
inline fn copy_code(to: [*]u8, from: [*]const u8, bytes: usize) void {
    const together_bytes = 16;
    if (bytes < together_bytes) return @memcpy(to[0..bytes], from[0..bytes]);
    var at: usize = 0;
    while (at + together_bytes < bytes) : (at += together_bytes) to[at..][0..together_bytes].* = from[at..][0..together_bytes].*;
    // The last are the end of the code, whatever its length.
    const end = bytes - together_bytes;
    to[end..][0..together_bytes].* = from[end..][0..together_bytes].*;
}

fn estimate_products(search: *Search, codes: [*]const u8, count: u32) void {
    search.room.walk.?.products.?.query.estimate(codes, count, search.distances[0..count]);
    search.cost.estimates += count;
}

/// The first of `fresh`, with their distances.
fn insert_fresh(search: *Search, list: *lists.List, count: u32) void {
    var at: u32 = 0;
    while (at < count) : (at += together) {
        _ = list.insert_many(search.fresh[at..][0..together], search.distances[at..][0..together], @min(together, count - at));
    }
}

/// Pages of all rows that pass; false where they are more than expected.
fn read_matches(search: *Search, filter: *const Filter) bool {
    const walk = &search.state.walk;
    walk.room.seeds.reset(filter_plan.matches_read_max);
    var pages: MatchingPages = .init(search, filter);
    while (pages.next()) |page| {
        if (walk.room.seeds.len == filter_plan.matches_read_max) return false;
        _ = walk.room.seeds.insert(page, 0);
    }
    walk.reads_all_seeds = true;
    return true;
}

/// The pages with a row that passes, ascending.
const MatchingPages = struct {
    search: *const Search,
    filter: *const Filter,
    found: ?filter_room.Matches,
    /// The rest of the word before `at`.
    word: u64 = 0,
    at: u32 = 0,
    last: ?u32 = null,

    fn init(search: *const Search, filter: *const Filter) MatchingPages {
        return .{ .search = search, .filter = filter, .found = filter.matches_found() };
    }

    fn next(self: *MatchingPages) ?u32 {
        while (self.next_row()) |row| {
            const page = self.search.shared.reader.directory.page_of(row);
            if (page == self.last) continue;
            self.last = page;
            return page;
        }
        return null;
    }

    fn next_row(self: *MatchingPages) ?u32 {
        if (self.found) |*found| return found.next();
        const words = (self.search.shared.reader.n() + 63) / 64;
        while (self.word == 0) {
            if (self.at == words) return null;
            self.word = self.filter.matching_word(self.at);
            self.at += 1;
        }
        defer self.word &= self.word - 1;
        return 64 * (self.at - 1) + @ctz(self.word);
    }
};

fn page_passes(search: *const Search, filter: *const Filter, page: u32) bool {
    const directory = &search.shared.reader.directory;
    const first = directory.first_vertex(page);
    return rescoring.any_passes(filter, first, first + directory.record_count(page));
}

/// Fills the free places of reads in flight.
pub fn step(search: *Search) Want {
    const walk = &search.state.walk;
    const round = &search.round;
    const most = walk.most_in_flight(search);
    const chain = walk.chain + 1;
    while (round.awaited < most) {
        const page = next_page(search) orelse break;
        round.add(page);
        walk.add(page, chain);
    }
    walk.chain = 0;
    return if (round.awaited == 0) .done else .pages;
}

const Source = enum { listed, leading, seeds };

/// The page of the nearest candidate or seed, requested from now on; null where nothing is wanted.
fn next_page(search: *Search) ?u32 {
    const walk = &search.state.walk;
    const directory = &search.shared.reader.directory;
    const filter = search.request.filter;
    const queues = [_]*lists.List{ &search.list, &walk.room.leading, &walk.room.seeds };
    while (true) {
        var source: Source = .listed;
        var nearest: f32 = std.math.inf(f32);
        var place: u32 = undefined;
        for (queues, 0..) |queue, number| {
            const own = queue.nearest_unexpanded() orelse continue;
            const distance = queue.items[own].distance();
            if (!(distance < nearest)) continue;
            nearest = distance;
            place = own;
            source = @enumFromInt(number);
        }
        if (nearest == std.math.inf(f32)) return null;
        if (!walk.reads_all_seeds) {
            // Of several segments one list counts.
            if (nearest > search.listed) return null;
            if (source != .listed and nearest > search.list.bound()) return null;
        }
        const queue = queues[@intFromEnum(source)];
        queue.mark_expanded(place);
        const number = queue.items[place].vertex();
        const page = if (source == .seeds) number else directory.page_of(number);
        if (!search.pages.insert(page)) continue;
        if (source == .leading and !filter.?.passes(number)) search.cost.filtered += 1;
        return page;
    }
}

/// A page that has arrived, with the distances of its records.
pub fn on_page(search: *Search, number: u32, view: *const layout.page.View, full: []const f32) PageError!void {
    const reader = search.shared.reader;
    const walk = &search.state.walk;
    walk.arrive(number);
    search.cost.rounds = @max(search.cost.rounds, walk.chain);
    search.cost.expanded += 1;
    if (walk.reads_all_seeds) return;
    // Their page was requested: they are in the list as its bound.
    for (full, view.first_vertex..) |distance, vertex| if (search.visited.insert(@intCast(vertex))) offer(search, @intCast(vertex), distance);
    const table = try view.table(reader.adjacency, reader.n(), &search.neighbors);
    const count = search.visited.insert_new(table.ids, &search.fresh);
    const bytes = reader.page_products.?.product.parts;
    const codes = walk.room.products.?.codes;
    var from: usize = 0;
    for (search.fresh[0..count], 0..) |id, i| {
        while (table.ids[from] != id) from += 1;
        copy_code(codes.ptr + i * bytes, table.codes + from * bytes, bytes);
    }
    estimate_products(search, codes.ptr, count);
    const filter = search.request.filter orelse return insert_fresh(search, &search.list, count);
    insert_fresh(search, &walk.room.leading, count);
    var passes: [layout.page.table_max]bool = undefined;
    filter.passes_many(search.fresh[0..count], passes[0..count]);
    for (search.fresh[0..count], search.distances[0..count], passes[0..count]) |vertex, distance, one| {
        if (one) _ = search.list.insert(vertex, distance);
    }
}

fn offer(search: *Search, vertex: u32, distance: f32) void {
    const filter = search.request.filter orelse {
        _ = search.list.insert(vertex, distance);
        return;
    };
    _ = search.state.walk.room.leading.insert(vertex, distance);
    if (filter.passes(vertex)) _ = search.list.insert(vertex, distance);
}

// ---- pages without tables ----
//
// A page is as near as the nearest of its codes. Those of the coarsest level, one a page, leave out most pages before finer
// ones are compared.

/// Pages whose coarse codes tell the bound.
const sampled_max = Search.fresh_max;

fn rank(search: *Search, filter: ?*const Filter) void {
    const walk = &search.state.walk;
    walk.reads_all_seeds = true;
    walk.room.seeds.reset(if (filter) |one| filter_plan.pages_filtered(search.shared, one, &search.parameters) else search.parameters.list_size);
    const page_count = search.shared.reader.directory.page_count();
    const bound = coarse_bound(search, page_count, filter);
    var first: u32 = 0;
    while (first < page_count) {
        const count = @min(Search.fresh_max, page_count - first);
        for (search.fresh[0..count], first..) |*id, page| id.* = @intCast(page);
        estimate_pages(search, &search.shared.reader.page_codes.?.coarse, count);
        var near: [Search.fresh_max]u32 = undefined;
        var near_count: u32 = 0;
        for (search.distances[0..count], first..) |distance, page| {
            if (distance > bound) continue;
            near[near_count] = @intCast(page);
            near_count += 1;
        }
        rank_pages(search, near[0..near_count], filter);
        first += count;
    }
}

/// The bound of coarse codes within which finer ones are compared; of some pages, evenly drawn, as many are within as of all.
fn coarse_bound(search: *Search, page_count: u32, filter: ?*const Filter) f32 {
    const of_pages = &search.shared.reader.page_codes.?;
    if (of_pages.count == 1) return std.math.inf(f32);
    const wanted = @max(page_count / filter_plan.looked_share, filter_plan.looked_lists * search.room.walk.?.seeds.limit);
    const share = if (filter) |one| filter_plan.pages_passing(search.shared, one) else 1;
    // If few pages have a row that passes, as many of those.
    const looked = @as(f64, @floatFromInt(wanted)) / share;
    const sampled = @min(sampled_max, page_count);
    const place = looked * @as(f64, @floatFromInt(sampled)) / @as(f64, @floatFromInt(page_count));
    if (place >= @as(f64, @floatFromInt(sampled))) return std.math.inf(f32);
    for (search.fresh[0..sampled], 0..) |*id, i| id.* = @intCast(@as(u64, i) * page_count / sampled);
    estimate_pages(search, &of_pages.coarse, sampled);
    std.mem.sortUnstable(f32, search.distances[0..sampled], {}, std.sort.asc(f32));
    return search.distances[@intFromFloat(place)];
}

/// The nearest of these pages become seeds.
fn rank_pages(search: *Search, pages: []const u32, filter: ?*const Filter) void {
    const of_pages = &search.shared.reader.page_codes.?;
    const seeds = &search.room.walk.?.seeds;
    const each = of_pages.count;
    const pages_together = Search.fresh_max / each;
    assert(pages_together > 0);
    var at: usize = 0;
    while (at < pages.len) : (at += pages_together) {
        const some = pages[at..@min(pages.len, at + pages_together)];
        for (some, 0..) |page, i| {
            for (search.fresh[i * each ..][0..each], 0..) |*id, number| id.* = page * each + @as(u32, @intCast(number));
        }
        estimate_pages(search, &of_pages.fine, @intCast(some.len * each));
        for (some, 0..) |page, i| {
            const nearest = std.mem.min(f32, search.distances[i * each ..][0..each]);
            if (!(nearest < seeds.bound())) continue;
            if (filter) |one| if (!page_passes(search, one, page)) continue;
            _ = seeds.insert(page, nearest);
        }
    }
}

fn estimate_pages(search: *Search, codes: *const quant.Codes, count: u32) void {
    search.query.estimate(codes, search.fresh[0..count], search.distances[0..count]);
    search.cost.estimates += count;
}

test "reads in flight grow with what has arrived, and a chain is as long as the longest behind it" {
    var walk: Walk = .{ .room = undefined };
    var search: Search = undefined;
    search.parameters.burst_max = parameters_file.burst_max;
    search.request.share = 1;
    try std.testing.expectEqual(2, walk.most_in_flight(&search));
    for (0..40) |i| walk.add(@intCast(i), @intCast(1 + i % 3));
    for (0..30) |i| walk.arrive(@intCast(39 - i));
    try std.testing.expectEqual(3, walk.chain);
    try std.testing.expectEqual(10, walk.flight_count);
    try std.testing.expectEqual(8, walk.most_in_flight(&search)); // √64
    search.request.share = 0.01;
    try std.testing.expectEqual(in_flight_least, walk.most_in_flight(&search));
    search.request.share = 1;
    walk.requested = 10_000;
    try std.testing.expectEqual(in_flight_max, walk.most_in_flight(&search));
    search.parameters.burst_max = 3;
    try std.testing.expectEqual(3, walk.most_in_flight(&search));
    walk.reads_all_seeds = true;
    search.parameters.burst_max = parameters_file.burst_max;
    try std.testing.expectEqual(parameters_file.burst_max, walk.most_in_flight(&search));
}
