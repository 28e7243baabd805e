//! The plan of a search with a filter, chosen before its first step by the expected cost of each.
//!
//!   scan          the codes of all that pass are looked at, without the graph: what takes time is the matches
//!   gate          filtered traversal: best first through everything, but only what passes is a candidate, and only
//!                 candidates are read: what takes time is the vertices that lie between
//!   late          what a search without a filter would read, with a list long enough to hold k that pass. Chosen only
//!                 where links are on disk, since there a vertex must be read before it can be followed
//!
//! Nothing here depends on earlier searches: the same filter on the same index gives the same plan.
const std = @import("std");
const filter_room = @import("filter");
const parameters_file = @import("parameters.zig");
const FilterPlan = parameters_file.FilterPlan;
const Parameters = parameters_file.Parameters;
const shared_file = @import("shared.zig");
const Shared = shared_file.Shared;

/// Costs on one core in nanoseconds, as measured on sift1m (docs/ARCHITECTURE.md). Only their ratios matter.
const estimate_base_ns = 5;
const estimate_byte_ns = 0.1; // of a code's entry, most of it the wait for memory
const word_ns = 0.5; // 64 rows that all fail
const follow_ns = 350; // links of a vertex: found, decoded
const follow_link_ns = 15; // and each of them looked up
const read_ns = 10_000; // submitted, awaited among others, its records scored

/// So few matches are all read: an answer as good as the codes.
pub const read_all_max = 64;

/// Shared links: what a vertex that is followed brings is like that of so many links of its own.
const links_like = 64;

/// Pages that are traversed: of so few matches all pages are read.
pub const matches_read_max = 128;
/// So few pages with a match are all compared.
const pages_listed_max = 1000;

/// Pages without tables: pages whose finer codes are looked at: at least one in so many, and several times as many as are read.
pub const looked_share = 8;
pub const looked_lists = 8;

/// Candidates beyond k that always count.
pub const spare = 6;
/// By how much longer the list of filtered traversal is than one without a filter: what lies between the answers hides
/// some of the ways to them.
pub const traversal_margin = 1.15;

/// The least bound, in standard deviations, of a search that reads only what passes, where hardly anything does.
/// Without a filter some answers come with pages that were read for others; the fewer pass, the fewer do.
pub const sigma_least = 0.8;

/// The same as a part of a scan's bound for the recall that was asked for: navigation knows more of the neighborhood.
pub const sigma_share = 0.75;

/// Shares at and above this are navigated as if there were no filter: what fails is hardly in the way.
pub const dense_share = 0.4;

/// The expected cost of a plan.
pub const Cost = struct {
    reads: f64 = 0,
    estimates: f64 = 0,
    expanded: f64 = 0,
    ns: f64 = 0,
    /// False: the plan cannot be had as the index is open.
    possible: bool = true,
};

fn estimate_of_code_ns(entry_bytes: f64) f64 {
    return estimate_base_ns + estimate_byte_ns * entry_bytes;
}

/// Whether to look at all codes takes no longer than so many reads.
pub fn scans_within_reads(shared: *const Shared, reads: u32) bool {
    const n: f64 = @floatFromInt(shared.reader.n());
    const entry_bytes: f64 = @floatFromInt(shared.reader.codes.params.entry_bytes());
    return n * estimate_of_code_ns(entry_bytes) <= read_ns * @as(f64, @floatFromInt(reads));
}

pub const Choice = struct {
    plan: FilterPlan,
    scan: Cost,
    traversal: Cost,
    late: Cost,
};

/// The properties that plans depend on.
pub const Case = struct {
    n: f64,
    /// Of all rows, those that pass.
    share: f64,
    k: f64,
    list_size: f64,
    entry_bytes: f64,
    entries: f64,
    /// A vertex, in memory; 0: they are on disk.
    links: f64,

    pub fn of(shared: *const Shared, filter: *const filter_room.Filter, parameters: *const Parameters) Case {
        return .{
            .n = @floatFromInt(shared.reader.n()),
            .share = filter.estimate(),
            .k = @floatFromInt(parameters.k),
            .list_size = @floatFromInt(parameters_file.list_size_filtered(parameters)),
            .entry_bytes = @floatFromInt(shared.reader.codes.params.entry_bytes()),
            .entries = @floatFromInt(@min(shared.entries.len, shared_file.entries_looked)),
            .links = if (shared.plan != .links_in_memory) 0 else if (shared.reader.block_adjacency != null) links_like else @floatFromInt(shared.reader.links_kept),
        };
    }

    fn estimate_ns(self: *const Case) f64 {
        return estimate_of_code_ns(self.entry_bytes);
    }

    /// A vertex followed through links in memory, without the estimates it leads to.
    fn follow_cost_ns(self: *const Case) f64 {
        return follow_ns + follow_link_ns * self.links;
    }

    /// Reads of a search that knows what passes: nearly every answer lies on a page of its own.
    fn reads(self: *const Case) f64 {
        return @min(1.15 * self.k, self.n * self.share);
    }

    pub fn scan(self: *const Case) Cost {
        const matches = self.n * self.share;
        return .{
            .reads = self.reads(),
            .estimates = matches,
            .ns = matches * self.estimate_ns() + self.n / 64 * word_ns + self.reads() * read_ns,
        };
    }

    /// Distances that a vertex that filtered traversal follows leads to.
    fn met_by_traversal(self: *const Case) f64 {
        return if (self.share >= dense_share) 0.53 * self.links else 0.53 * self.links + 51 * self.share;
    }

    /// A vertex that filtered traversal follows, with all it leads to.
    pub fn traversal_step_ns(self: *const Case) f64 {
        return self.follow_cost_ns() + self.met_by_traversal() * self.estimate_ns();
    }

    pub fn traversal(self: *const Case) Cost {
        if (self.links == 0) return .{ .possible = false };
        const share = @max(self.share, 1 / self.n);
        const root = @sqrt(share);
        // The list spans list_size·√s passing vertices, but not fewer than k and some, so list_size/√s of all; of those
        // that fail one in three stands for its neighborhood.
        const list_size = @max(traversal_margin * self.list_size, @min(self.list_size, self.k + spare) / root);
        const followed = @min(self.n, if (share >= dense_share) list_size / root else list_size * (1.3 * root + 0.32 / root));
        const estimates = @min(self.n, followed * self.met_by_traversal()) + self.entries;
        return .{
            .reads = self.reads(),
            .estimates = estimates,
            .expanded = followed,
            .ns = followed * self.follow_cost_ns() + estimates * self.estimate_ns() + self.reads() * read_ns,
        };
    }

    /// The list that holds k passing vertices as surely as one of list_size holds any k.
    pub fn late_list_size(self: *const Case) f64 {
        return @min(@as(f64, parameters_file.list_size_max), @ceil(self.list_size / @sqrt(@max(self.share, 1 / self.n))));
    }

    pub fn late(self: *const Case) Cost {
        const share = @max(self.share, 1 / self.n);
        // Answers of a search without a filter, k/s of them, begin to share pages.
        const answers = 1.15 * self.k * std.math.pow(f64, share, -0.85);
        const followed = @min(self.n, self.late_list_size());
        const wanted = @min(self.n, if (self.links > 0) answers else @max(answers, followed));
        const links = if (self.links > 0) self.links else 24;
        const estimates = @min(self.n, followed * 0.53 * links) + self.entries;
        return .{
            .reads = wanted,
            .estimates = estimates,
            .expanded = followed,
            .ns = followed * self.follow_cost_ns() + estimates * self.estimate_ns() + wanted * read_ns,
        };
    }

    pub fn choose(self: *const Case) Choice {
        var choice: Choice = .{ .plan = .scan, .scan = self.scan(), .traversal = self.traversal(), .late = self.late() };
        // With links in memory filtered traversal reads less than a late check and follows no more.
        const graph: FilterPlan = if (choice.traversal.possible) .gate else .late;
        const cost = if (choice.traversal.possible) choice.traversal else choice.late;
        if (cost.ns < choice.scan.ns) choice.plan = graph;
        return choice;
    }
};

/// The plan that a search takes. With links on disk filtered traversal is not possible: the filter is applied late.
pub fn plan_of(shared: *const Shared, filter: *const filter_room.Filter, parameters: *const Parameters) FilterPlan {
    if (shared.plan == .walk) return if (matches_of(shared, filter) <= matches_read_max) .scan else .gate;
    return switch (parameters.filter_plan) {
        .auto => Case.of(shared, filter, parameters).choose().plan,
        .gate => if (shared.plan == .links_in_memory) .gate else .late,
        else => |plan| plan,
    };
}

/// The expected cost of each plan, and the choice.
pub fn choice_of(shared: *const Shared, filter: *const filter_room.Filter, parameters: *const Parameters) Choice {
    if (shared.plan != .walk) return Case.of(shared, filter, parameters).choose();
    const none: Cost = .{ .possible = false };
    const matches = matches_of(shared, filter);
    const reads = @min(matches, @as(f64, @floatFromInt(shared.reader.directory.page_count())) * pages_passing(shared, filter));
    const scan: Cost = if (matches <= matches_read_max) .{ .reads = reads, .ns = reads * read_ns } else none;
    const traversal = if (shared.reader.page_products == null) expected_of_pages(shared, filter, parameters) else expected_of_walk(shared, filter, parameters);
    return .{ .plan = plan_of(shared, filter, parameters), .scan = scan, .traversal = traversal, .late = none };
}

fn matches_of(shared: *const Shared, filter: *const filter_room.Filter) f64 {
    return filter.estimate() * @as(f64, @floatFromInt(shared.reader.n()));
}

/// The share of pages with a row that passes, as if rows passed by chance.
pub fn pages_passing(shared: *const Shared, filter: *const filter_room.Filter) f64 {
    const reader = shared.reader;
    const records = @as(f64, @floatFromInt(reader.n())) / @as(f64, @floatFromInt(reader.directory.page_count()));
    return @max(1e-9, 1 - std.math.pow(f64, 1 - @min(1, filter.estimate()), records));
}

/// Whether a traversal of pages begins at all pages with a match.
pub fn lists_matches(shared: *const Shared, filter: *const filter_room.Filter) bool {
    if (shared.reader.page_products == null) return false;
    const pages: f64 = @floatFromInt(shared.reader.directory.page_count());
    return pages > pages_compared_anyway and pages * pages_passing(shared, filter) <= pages_listed_max;
}

/// Seeds of an index of so many pages are chosen among all of them.
const pages_compared_anyway = 4096;

/// Cells whose pages are compared, so that as many seeds pass as without a filter.
pub fn cells_looked(shared: *const Shared, filter: ?*const filter_room.Filter, wanted: u32, most: u32) u32 {
    const share = if (filter) |one| pages_passing(shared, one) else 1;
    return @intFromFloat(@min(@as(f64, @floatFromInt(most)), @ceil(@as(f64, @floatFromInt(wanted)) / share)));
}

/// The list of vertices that pass, of a traversal of pages.
pub fn walk_list_size(shared: *const Shared, filter: *const filter_room.Filter, parameters: *const Parameters) u32 {
    const size: f64 = @floatFromInt(parameters_file.list_size_filtered(parameters));
    const share = std.math.clamp(filter.estimate(), 1 / @as(f64, @floatFromInt(shared.reader.n())), 1);
    return @intFromFloat(@max(@as(f64, @floatFromInt(parameters.k)), @ceil(size * (1 - @min(list_saved_most, list_saved * @log2(1 / share))))));
}

/// The part of the list that a filter saves each time it halves the rows that pass, and the most: the fewer pass, the more pages
/// are within the list's bound, and those that are read for tables hold matches, too. With recall 0.95 it is 0.15 and 0.12 where
/// half of the rows pass, 0.33 and 0.27 where a tenth does, and 0.22 and 0.20 where a hundredth does (sift100k and sift1m).
const list_saved = 0.12;
const list_saved_most = 0.22;

/// The second list of a traversal of pages, of vertices that fail the filter or pass it. It is short where all pages with a match
/// are seeds, since nothing need lead there. Elsewhere it is half of a list without a filter: over sift1m 10 entries read 8 % more
/// pages than 30 where a tenth of the rows passes, over sift100k 7 % fewer.
pub fn walk_leading_size(shared: *const Shared, filter: *const filter_room.Filter, parameters: *const Parameters) u32 {
    if (lists_matches(shared, filter)) return leading_least;
    return std.math.clamp(parameters_file.list_size_filtered(parameters) / 2, leading_least, leading_max);
}

const leading_least = 10;
pub const leading_max = 30;

/// The expected cost of a traversal of pages, as simulated (docs/decisions/0024).
fn expected_of_walk(shared: *const Shared, filter: *const filter_room.Filter, parameters: *const Parameters) Cost {
    const reader = shared.reader;
    const pages: f64 = @floatFromInt(reader.directory.page_count());
    const list_size: f64 = @floatFromInt(walk_list_size(shared, filter, parameters));
    const reads = @min(pages, reads_of_list * list_size);
    const products = &reader.page_products.?;
    const looked = if (products.record_codes.len > 0) @min(pages, 2 * list_size + pages / 100) * @as(f64, @floatFromInt(products.count)) else 0;
    const estimates = @min(pages, pages_compared_anyway) * @as(f64, @floatFromInt(products.center_count)) + looked + new_of_table * reads;
    const estimate_ns = estimate_of_code_ns(@floatFromInt(reader.page_products.?.product.parts));
    return .{ .reads = reads, .estimates = estimates, .expanded = reads, .ns = estimates * estimate_ns + reads * read_ns };
}

/// Pages that a traversal reads for a place in its list; vertices of a table that were not met.
const reads_of_list = 0.75;
const new_of_table = 80;

/// Pages that a search with a filter reads: answers lie farther than the pages they are on seem to. So many more as a list
/// without a filter would have to hold, less those on which nothing passes; and more where few pass, for then hardly two of the
/// answers share a page.
pub fn pages_filtered(shared: *const Shared, filter: *const filter_room.Filter, parameters: *const Parameters) u32 {
    const reader = shared.reader;
    const n: f64 = @floatFromInt(reader.n());
    const matches = @max(1, filter.estimate() * n);
    if (matches <= read_all_max) return @intFromFloat(@ceil(@max(matches, @as(f64, @floatFromInt(parameters.list_size)))));
    const case = Case.of(shared, filter, parameters);
    const some_pass = 1 - std.math.pow(f64, 1 - matches / n, n / @as(f64, @floatFromInt(reader.directory.page_count())));
    return @intFromFloat(@max(@as(f64, @floatFromInt(parameters_file.list_size_filtered(parameters))), @ceil(case.late_list_size() * some_pass * (1.25 - 0.25 * some_pass))));
}

/// The expected cost of a search with a filter.
fn expected_of_pages(shared: *const Shared, filter: *const filter_room.Filter, parameters: *const Parameters) Cost {
    const reader = shared.reader;
    const pages: f64 = @floatFromInt(reader.directory.page_count());
    const reads = @min(pages, @as(f64, @floatFromInt(pages_filtered(shared, filter, parameters))));
    const each: f64 = @floatFromInt(reader.page_codes_kept());
    const looked = if (each > 1) @min(pages, @max(pages / looked_share, looked_lists * reads)) * each else 0;
    const estimate_ns = estimate_of_code_ns(@floatFromInt(reader.codes.params.entry_bytes()));
    return .{ .reads = reads, .estimates = pages + looked, .ns = (pages + looked) * estimate_ns + reads * read_ns };
}

fn test_case(share: f64) Case {
    return .{ .n = 1e6, .share = share, .k = 10, .list_size = 160, .entry_bytes = 68, .entries = 2000, .links = 16 };
}

test "few matches are scanned, many are found through the graph, and there is one boundary" {
    var last: FilterPlan = .scan;
    var changes: u32 = 0;
    var share: f64 = 1e-6;
    while (share <= 1) : (share *= 1.1) {
        const choice = test_case(share).choose();
        if (choice.plan != last) changes += 1;
        last = choice.plan;
        const chosen = if (choice.plan == .scan) choice.scan else choice.traversal;
        try std.testing.expect(chosen.ns <= choice.scan.ns and chosen.ns <= choice.traversal.ns);
    }
    try std.testing.expectEqual(.gate, last);
    try std.testing.expectEqual(1, changes);
}

test "a filter never makes more expensive than the late check" {
    for ([_]f64{ 1e-6, 1e-4, 0.01, 0.1, 0.5, 1 }) |share| {
        const choice = test_case(share).choose();
        const chosen = if (choice.plan == .scan) choice.scan else choice.traversal;
        try std.testing.expect(chosen.reads <= choice.late.reads);
        // If all rows pass, the longer list of filtered traversal gains nothing; only then may it cost more, by its length.
        try std.testing.expect(chosen.ns <= choice.late.ns * @as(f64, if (share == 1) traversal_margin else 1.001));
    }
}

test "links on disk: filtered traversal is not possible, and reading is dearer than looking at codes" {
    var case = test_case(0.1);
    case.links = 0;
    const choice = case.choose();
    try std.testing.expect(!choice.traversal.possible);
    try std.testing.expectEqual(.scan, choice.plan);
    try std.testing.expect(case.late_list_size() > case.list_size);
    case.share = 0.9;
    try std.testing.expectEqual(.late, case.choose().plan);
    case.n = 1e9;
    case.share = 0.1;
    try std.testing.expectEqual(.late, case.choose().plan);
}
