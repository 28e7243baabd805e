//! One search's parameters, resolved: defaults filled in, limits kept.
const std = @import("std");
const base = @import("base");
const Calibration = @import("calibration.zig").Calibration;

const ranges = base.limits.ranges;

pub const k_max = ranges.k.max;
pub const list_size_max = ranges.list_size.max;
pub const burst_max = ranges.burst_max.max;

/// The plan of a search with a filter: `auto` leaves it to the planner (filter_plan.zig), the others are for comparison.
pub const FilterPlan = enum {
    auto,
    /// Every candidate is read and scored, then the filter is asked for results.
    late,
    /// Only what passes is a candidate and read; failing vertices are navigated through in memory.
    gate,
    /// The codes of all that pass are looked at, without the graph.
    scan,
};

pub const Parameters = struct {
    k: u32,
    list_size: u32,
    /// A candidate is read if its estimate less this many standard deviations reaches the k-th best.
    sigma: f32,
    /// The same with links on disk, where what is not read is not followed either.
    sigma_on_disk: f32,
    /// A walk over links in memory ends by distance (`share_followed`).
    stops: bool = false,
    /// The caller gave no sigma, so a filter may widen it.
    sigma_by_plan: bool = true,
    /// The recall that was asked for, 0 where the caller named a list.
    recall: f32 = 0,
    /// With a filter: how many times as long the list is (calibration.zig).
    stretch: f32 = 1,
    /// Without a filter: the codes of all rows are looked at, since the graph does not reach the recall.
    scan: bool = false,
    burst_max: u32 = burst_max,
    beam_width: u32 = 4,
    filter_plan: FilterPlan = .auto,
    /// The last candidates are scored from the stored vectors (rescoring.zig); without them it changes nothing.
    exact: bool = false,
    /// All stored vectors are looked at (rescoring.zig): a recall of 1.
    every: bool = false,
    /// `records_used` is counted.
    count_used: bool = false,
};

/// A caller's request; zero (or negative, for sigma) is "the default".
pub const Asked = struct {
    k: u32,
    list_size: u32 = 0,
    recall: f32 = 0,
    sigma: f32 = 0,
    burst_max: u32 = 0,
    beam_width: u32 = 0,
    filter_plan: FilterPlan = .auto,
    exact: ?bool = null,
    count_used: bool = false,
};

pub fn resolve(asked: Asked, calibration: Calibration) Parameters {
    const list_size = @max(asked.k, if (asked.list_size > 0)
        asked.list_size
    else if (asked.recall > 0)
        @max(calibration.list_size(asked.k, asked.recall) orelse list_size_for(asked.recall), list_size_least(asked.k, asked.recall))
    else
        list_size_default);
    const by_recall = asked.list_size == 0 and asked.recall > 0;
    const every = by_recall and asked.recall >= 1;
    return .{
        .k = asked.k,
        .list_size = list_size,
        .recall = if (by_recall) asked.recall else 0,
        .stretch = if (by_recall) calibration.stretch(asked.k, asked.recall) else 1,
        .scan = asked.filter_plan == .scan or (by_recall and !every and calibration.prefers_scan(asked.k, asked.recall)),
        .stops = asked.list_size > 0 or calibration.stops(),
        .sigma = if (asked.sigma > 0) asked.sigma else sigma_of(list_size),
        .sigma_on_disk = if (asked.sigma > 0) asked.sigma else sigma_on_disk_of(list_size),
        .sigma_by_plan = !(asked.sigma > 0),
        .burst_max = if (asked.burst_max == 0) burst_max else asked.burst_max,
        .beam_width = if (asked.beam_width == 0) beam_width_default else asked.beam_width,
        .filter_plan = asked.filter_plan,
        .exact = every or asked.exact orelse (by_recall and calibration.wants_exact(asked.k, asked.recall)),
        .every = every,
        .count_used = asked.count_used,
    };
}

/// Candidates of a list are followed while their squared distance is at most so many times that of the k-th nearest: wider
/// lists are asked for by those who want more of the answers, so both grow together. Measured on sift1m: at recall 0.95
/// a query follows a fifth less than if it followed its list to the end, at 0.99 two fifths (docs/decisions/0018). After
/// Al-Jazzazi et al., Distance Adaptive Beam Search for Provably Accurate Graph-Based Nearest Neighbor Search, 2025.
pub fn share_followed(list_size: u32) f32 {
    const size: f32 = @floatFromInt(list_size);
    return 1 + 0.2 * std.math.pow(f32, size / 100, 0.35);
}

/// A request for fewer neighbors still ends by this one: a nearest alone says little of the distance of others.
pub const stop_k_least = 10;

/// So many of a list are followed however far they are: estimates of the nearest err, above all where these are copies.
pub fn followed_least(list_size: u32) u32 {
    return list_size / 4;
}

/// The bound with which reading does not cut what the list has found: wider lists are asked for by
/// those who want more of the answers, so both grow together. Measured on sift1m (docs/results).
pub fn sigma_of(list_size: u32) f32 {
    const size: f32 = @floatFromInt(list_size);
    return std.math.clamp(0.25 * size / 100, 0.15, 3);
}

/// With 2 bits in memory over 100,000 descriptors and with 4 over a million, recall 0.95 took the fewest reads at 0.7 to
/// 1.0 for a list of 100; 1.0 needs the shorter list. It has no largest value: what is not read is not followed, so a
/// bound that no longer widens ends the search before its list does.
pub fn sigma_on_disk_of(list_size: u32) f32 {
    const size: f32 = @floatFromInt(list_size);
    return @max(size / 100, 0.15);
}

/// The bound of a scan: an answer is missed where its estimate errs by more, so the recall of answers that lie
/// at the bound itself is the normal distribution's; the others do better.
pub fn sigma_of_scan(parameters: *const Parameters) f32 {
    const steps = [_][2]f32{ .{ 0.5, 0 }, .{ 0.8, 0.85 }, .{ 0.9, 1.29 }, .{ 0.95, 1.65 }, .{ 0.98, 2.06 }, .{ 0.99, 2.33 }, .{ 0.995, 2.58 }, .{ 0.999, 3.1 }, .{ 1, sigma_widest } };
    if (parameters.recall == 0) return @max(parameters.sigma, 2);
    for (steps) |step| {
        if (parameters.recall <= step[0]) return step[1];
    }
    return steps[steps.len - 1][1];
}

/// No estimate errs by more, as far as anybody will notice.
const sigma_widest = 4;

/// Candidates that a scan keeps, at least: more than estimates could mistake for the nearest.
pub const scan_list_size = 512;

/// Lists hardly longer than k are where queries differ most from the rows that stood for them: on data of few nonzero
/// coordinates a list of 11 that found 0.961 for rows found 0.904 for queries.
fn list_size_least(k: u32, recall: f32) u32 {
    return if (recall < 0.9) k else @min(k + 14, list_size_max);
}

/// The list of a search with a filter.
pub fn list_size_filtered(parameters: *const Parameters) u32 {
    const wanted = @ceil(parameters.stretch * @as(f32, @floatFromInt(parameters.list_size)));
    return @intFromFloat(std.math.clamp(wanted, 1, list_size_max));
}

const list_size_default = 100;
const beam_width_default = 4;

/// The list size for a wanted recall@10 where the build measured none: what a million SIFT descriptors need at 20 %
/// memory, with some to spare. A wish rather than a promise.
fn list_size_for(recall: f32) u32 {
    const steps = [_]struct { recall: f32, list_size: u32 }{
        .{ .recall = 0.80, .list_size = 24 },
        .{ .recall = 0.85, .list_size = 40 },
        .{ .recall = 0.90, .list_size = 64 },
        .{ .recall = 0.93, .list_size = 100 },
        .{ .recall = 0.95, .list_size = 160 },
        .{ .recall = 0.97, .list_size = 280 },
        .{ .recall = 0.98, .list_size = 420 },
        .{ .recall = 0.99, .list_size = 900 },
    };
    for (steps) |step| {
        if (recall <= step.recall) return step.list_size;
    }
    return 2000;
}

test "a higher recall asks for a longer list" {
    var last: u32 = 0;
    for (1..100) |percent| {
        const size = list_size_for(@as(f32, @floatFromInt(percent)) / 100);
        try std.testing.expect(size >= last);
        last = size;
    }
    try std.testing.expectEqual(160, list_size_for(0.95));
    try std.testing.expectEqual(500, resolve(.{ .k = 500, .recall = 0.5 }, .{}).list_size);
    try std.testing.expectEqual(30, resolve(.{ .k = 10, .recall = 0.99, .list_size = 30 }, .{}).list_size);
}
