//! The list size behind a wanted recall, from the table that the build measured on held-out rows
//! (layout.manifest.Calibration, docs/FORMAT.md).
//!
//! A curve holds what searches with growing lists found, for one k and one number of links in memory (0: links on
//! disk). Every number of links has a curve for k = 10, the largest one also for other k. What another k needs more or
//! less of is taken from there; between two numbers of links, and between two k, list sizes are interpolated by their
//! logarithms.
const std = @import("std");
const layout = @import("layout");
const list_size_max = @import("base").limits.ranges.list_size.max;
const Plan = @import("shared.zig").Plan;
const Table = layout.manifest.Calibration;
const Curve = layout.manifest.CalibrationCurve;
const Point = layout.manifest.CalibrationPoint;

/// The k for which each number of links was measured.
const k_measured = 10;

/// The expected recall and cost of a query.
pub const Expected = struct {
    recall: f32 = 0,
    reads: f32 = 0,
    rounds: f32 = 0,
    estimates: f32 = 0,
    expanded: f32 = 0,
    scored: f32 = 0,
};

/// The table of one open index, for the plan it runs.
pub const Calibration = struct {
    table: ?*const Table = null,
    plan: Plan = .links_in_memory,
    /// Links a vertex in memory, or codes of each page; 0 on the links-on-disk plan.
    kept: u32 = 0,
    /// Pages are ranked by their codes, and nothing is traversed.
    ranks: bool = false,

    pub fn of(manifest: *const layout.manifest.Manifest, plan: Plan, kept: u32) Calibration {
        const table: *const Table = if (manifest.calibration) |*found| found else return .{ .plan = plan };
        return .{ .table = table, .plan = plan, .kept = if (plan == .links_on_disk) 0 else kept, .ranks = plan == .walk and !manifest.page_tables };
    }

    /// Whether walks ended by distance when the table was measured.
    pub fn stops(self: Calibration) bool {
        const table = self.table orelse return false;
        return table.stops;
    }

    /// Null where the build measured nothing.
    pub fn list_size(self: Calibration, k: u32, recall: f32) ?u32 {
        const around = self.curves_around() orelse return null;
        const like = self.recall_like(k, recall);
        const low = reach(around.low, like) orelse return null;
        const high = reach(around.high, like) orelse return null;
        const beyond = @max(1, as_f32(k) / as_f32(self.k_largest()));
        const wanted = @ceil(between(low, high, around.share) * beyond - 1e-3);
        return @intFromFloat(std.math.clamp(wanted, as_f32(k), list_size_max));
    }

    /// Whether the graph does not reach a recall that a look at all codes comes nearer to.
    pub fn prefers_scan(self: Calibration, k: u32, recall: f32) bool {
        if (self.plan == .walk) return false; // which has no codes to look at
        const around = self.curves_around() orelse return false;
        const scanned = self.table.?.scan orelse return false;
        const like = self.recall_like(k, recall);
        const reached = @min(promised_at(around.low, list_size_max), promised_at(around.high, list_size_max));
        return reached < like and promised(scanned) > reached + scan_gain_min;
    }

    /// The expected recall and cost of a scan; null where none was measured.
    pub fn expected_of_scan(self: Calibration) ?Expected {
        const table = self.table orelse return null;
        return of_point(table.scan orelse return null);
    }

    /// Whether a recall needs distances from the stored vectors: where the build found that codes do not tell enough, or
    /// where more is asked for than codes give.
    pub fn wants_exact(self: Calibration, k: u32, recall: f32) bool {
        const around = self.curves_around() orelse return false;
        if (self.table.?.exact) return true;
        const reached = @max(promised_at(around.low, list_size_max), promised_at(around.high, list_size_max));
        const scanned = if (self.table.?.scan) |point| promised(point) else 0;
        return @max(reached, scanned) < self.recall_like(k, recall);
    }

    /// By how much longer a list has to be once a filter takes ways through the graph away. Where the neighbors that are
    /// missed are missed one by one, found ones spread over queries as chance would have it, and it is 1. Where whole
    /// queries miss theirs, the graph loses its way, as between tight clusters, and a filter makes that worse: with 2,000
    /// clusters of ten rows, half of which pass, three to four times the list finds what the list alone finds without one.
    pub fn stretch(self: Calibration, k: u32, recall: f32) f32 {
        if (self.ranks) return 1;
        const table = self.table orelse return 1;
        const widest = self.widest_curve() orelse return 1;
        const like = self.recall_like(k, recall);
        var nearest: ?Point = null;
        for (widest.points) |point| {
            if (point.list_size > list_whole_sample or !(point.recall > 0.5 and point.recall < 0.99)) continue;
            if (nearest == null or @abs(point.recall - like) < @abs(nearest.?.recall - like)) nearest = point;
        }
        const point = nearest orelse return 1;
        const by_chance = @sqrt(point.recall * (1 - point.recall) / k_measured);
        const spread = point.deviation * @sqrt(as_f32(table.queries)) / by_chance;
        return @max(1, @min(std.math.pow(f32, @max(spread, 0) / spread_of_chance, 1.6), stretch_max));
    }

    /// Longer lists are measured with a part of the sample (velo/building/calibration.py).
    const list_whole_sample = 290;
    const spread_of_chance = 1.2;
    const stretch_max = 4;

    /// A scan takes more time than any list.
    const scan_gain_min = 0.004;

    /// The expected recall and cost of a search with that list; null where the build measured nothing.
    pub fn expected(self: Calibration, k: u32, size: u32) ?Expected {
        const around = self.curves_around() orelse return null;
        const at_size: f32 = @floatFromInt(size);
        var found = mix(at(around.low, at_size), at(around.high, at_size), around.share);
        if (k == k_measured) return found;
        const widest = self.widest_curve() orelse return found;
        const near = self.curve_of_k(k) orelse return found;
        // The list over the most links that promises as much for `k_measured` tells what is found for other k.
        const scaled = at_size * @min(1, as_f32(self.k_largest()) / as_f32(k));
        const promise = promised_at(around.low, scaled) * (1 - around.share) + promised_at(around.high, scaled) * around.share;
        const like = reach(widest, promise) orelse at_size;
        const base = at(widest, like);
        const other = at(near, like);
        const ratio = as_f32(k) / as_f32(near.k);
        found.recall = other.recall;
        found.reads *= other.reads * @max(1, ratio) / @max(base.reads, 0.01);
        found.rounds *= other.rounds / @max(base.rounds, 0.01);
        found.scored *= other.scored * @max(1, ratio) / @max(base.scored, 0.01);
        return found;
    }

    /// The recall for `k_measured` that a list has which reaches `recall` for k, by the widest curves.
    fn recall_like(self: Calibration, k: u32, recall: f32) f32 {
        const table = self.table orelse return recall;
        const widest = self.widest_curve() orelse return recall;
        if (k == k_measured) return recall;
        var low: ?*const Curve = null;
        var high: ?*const Curve = null;
        for (table.curves) |*curve| {
            if (curve.links != widest.links or curve.page_codes != widest.page_codes or curve.points.len == 0 or curve.k == 0) continue;
            if (curve.k <= k and (low == null or curve.k > low.?.k)) low = curve;
            if (curve.k >= k and (high == null or curve.k < high.?.k)) high = curve;
        }
        const below = low orelse high orelse return recall;
        const above = high orelse below;
        const from = reach(below, recall) orelse return recall;
        const to = reach(above, recall) orelse return recall;
        const share = if (below.k == above.k) 0 else @log(as_f32(k) / as_f32(below.k)) / @log(as_f32(above.k) / as_f32(below.k));
        return promised_at(widest, between(from, to, share));
    }

    /// Beyond it the list grows with k.
    fn k_largest(self: Calibration) u32 {
        var largest: u32 = k_measured;
        if (self.table) |table| for (table.curves) |curve| {
            if (curve.points.len > 0) largest = @max(largest, curve.k);
        };
        return largest;
    }

    /// The curve of the reference whose k is the nearest.
    fn curve_of_k(self: Calibration, k: u32) ?*const Curve {
        const table = self.table orelse return null;
        const widest = self.widest_curve() orelse return null;
        var best: ?*const Curve = null;
        var best_gap = std.math.inf(f32);
        for (table.curves) |*curve| {
            if (curve.links != widest.links or curve.page_codes != widest.page_codes or curve.points.len == 0 or curve.k == 0) continue;
            const gap = @abs(@log(as_f32(curve.k) / as_f32(k)));
            if (gap < best_gap) {
                best = curve;
                best_gap = gap;
            }
        }
        return best;
    }

    /// The curve of the most links, for which other k were measured too; of codes of pages all were.
    fn widest_curve(self: Calibration) ?*const Curve {
        const table = self.table orelse return null;
        var best: ?*const Curve = null;
        for (table.curves) |*curve| {
            if (curve.k != k_measured or curve.points.len == 0 or (plan_of(curve) == .walk) != (self.plan == .walk)) continue;
            if (best == null or kept_of(curve) > kept_of(best.?)) best = curve;
            if (self.plan == .walk and kept_of(curve) == self.kept) return curve;
        }
        return best;
    }

    const Around = struct { low: *const Curve, high: *const Curve, share: f32 };

    /// The curves for `k_measured` just below and above the links in memory.
    fn curves_around(self: Calibration) ?Around {
        const table = self.table orelse return null;
        var low: ?*const Curve = null;
        var high: ?*const Curve = null;
        for (table.curves) |*curve| {
            if (curve.k != k_measured or curve.points.len == 0) continue;
            // Nothing lies between one plan and another.
            if (plan_of(curve) != self.plan) continue;
            const kept = kept_of(curve);
            if (kept <= self.kept and (low == null or kept > kept_of(low.?))) low = curve;
            if (kept >= self.kept and (high == null or kept < kept_of(high.?))) high = curve;
        }
        const below = low orelse high orelse return null;
        const above = high orelse below;
        if (kept_of(below) == kept_of(above)) return .{ .low = below, .high = above, .share = 0 };
        const share = @log(as_f32(self.kept) / as_f32(kept_of(below))) / @log(as_f32(kept_of(above)) / as_f32(kept_of(below)));
        return .{ .low = below, .high = above, .share = share };
    }
};

fn plan_of(curve: *const Curve) Plan {
    return if (curve.page_codes > 0) .walk else if (curve.links > 0) .links_in_memory else .links_on_disk;
}

fn kept_of(curve: *const Curve) u32 {
    return @max(curve.links, curve.page_codes);
}

/// The recall that may be promised on the strength of a sample: less its deviation, and less a part of what is missing, since
/// queries to come are not rows.
fn promised(point: Point) f32 {
    return point.recall - @max(point.deviation, margin_of_miss * (1 - point.recall));
}
const margin_of_miss = 0.25;

/// Two neighboring points of a curve, without those that promise less than a shorter list did.
const Steps = struct {
    points: []const Point,
    before: ?Point = null,

    fn next(self: *Steps) ?struct { before: ?Point, point: Point } {
        while (self.points.len > 0) {
            const point = self.points[0];
            self.points = self.points[1..];
            const before = self.before;
            if (before) |b| {
                if (!(promised(point) > promised(b)) or point.list_size <= b.list_size) continue;
            } else if (!(promised(point) <= 1)) continue;
            self.before = point;
            return .{ .before = before, .point = point };
        }
        return null;
    }
};

/// The list with which a curve promises a recall; its longest where none does, null where it has no points.
fn reach(curve: *const Curve, recall: f32) ?f32 {
    if (curve.points.len == 0) return null;
    var steps: Steps = .{ .points = curve.points };
    while (steps.next()) |step| {
        if (!(promised(step.point) >= recall)) continue;
        const before = step.before orelse return as_f32(step.point.list_size);
        const from = @log(miss(promised(before)));
        const share = (from - @log(miss(recall))) / (from - @log(miss(promised(step.point))));
        return between(as_f32(before.list_size), as_f32(step.point.list_size), share);
    }
    return as_f32(curve.points[curve.points.len - 1].list_size);
}

/// The recall that a curve promises for a list size: the inverse of `reach`.
fn promised_at(curve: *const Curve, size: f32) f32 {
    var steps: Steps = .{ .points = curve.points };
    var last: f32 = 0;
    while (steps.next()) |step| {
        last = promised(step.point);
        if (size > as_f32(step.point.list_size)) continue;
        const before = step.before orelse return last;
        const share = @log(@max(size, 1) / as_f32(before.list_size)) / @log(as_f32(step.point.list_size) / as_f32(before.list_size));
        const from = @log(miss(promised(before)));
        return 1 - @exp(from + std.math.clamp(share, 0, 1) * (@log(miss(last)) - from));
    }
    return last;
}

fn miss(recall: f32) f32 {
    return @max(1 - recall, 1e-5);
}

/// A curve's values for a list size; beyond its ends the values of its ends.
fn at(curve: *const Curve, size: f32) Expected {
    var before = curve.points[0];
    for (curve.points) |point| {
        if (size <= as_f32(point.list_size)) {
            const width = as_f32(point.list_size) - as_f32(before.list_size);
            const share = if (width <= 0) 0 else std.math.clamp((size - as_f32(before.list_size)) / width, 0, 1);
            return mix(of_point(before), of_point(point), share);
        }
        before = point;
    }
    return of_point(before);
}

fn of_point(point: Point) Expected {
    return .{
        .recall = point.recall,
        .reads = point.reads,
        .rounds = point.rounds,
        .estimates = point.estimates,
        .expanded = point.expanded,
        .scored = point.scored,
    };
}

fn mix(low: Expected, high: Expected, share: f32) Expected {
    var out: Expected = .{};
    inline for (std.meta.fields(Expected)) |field|
        @field(out, field.name) = @field(low, field.name) + share * (@field(high, field.name) - @field(low, field.name));
    return out;
}

/// Between two list sizes, by their logarithms.
fn between(low: f32, high: f32, share: f32) f32 {
    return @exp(@log(@max(low, 1e-3)) + std.math.clamp(share, 0, 1) * (@log(@max(high, 1e-3)) - @log(@max(low, 1e-3))));
}

fn as_f32(value: u32) f32 {
    return @floatFromInt(value);
}

const testing = std.testing;

fn example_point(list_size: u32, recall: f32) Point {
    return .{ .list_size = list_size, .recall = recall, .deviation = 0.001, .reads = 8, .rounds = 1.5, .estimates = 20 * as_f32(list_size), .expanded = as_f32(list_size), .scored = 200 };
}

const example_curves = [_]Curve{
    .{ .k = 10, .links = 0, .points = &.{ example_point(16, 0.9), example_point(64, 0.99) } },
    .{ .k = 10, .links = 8, .points = &.{ example_point(32, 0.8), example_point(128, 0.95), example_point(512, 0.99) } },
    .{ .k = 10, .links = 32, .points = &.{ example_point(16, 0.8), example_point(64, 0.95), example_point(256, 0.99) } },
    .{ .k = 1, .links = 32, .points = &.{ example_point(8, 0.8), example_point(32, 0.95), example_point(128, 0.99) } },
    .{ .k = 100, .links = 32, .points = &.{ example_point(100, 0.9), example_point(256, 0.99) } },
};

test "a list size reaches the recall asked for, grows with it, with fewer links and with k" {
    const table: Table = .{ .queries = 100, .curves = &example_curves };
    const full: Calibration = .{ .table = &table, .kept = 32 };
    const few: Calibration = .{ .table = &table, .kept = 8 };
    const middle: Calibration = .{ .table = &table, .kept = 16 };
    const on_disk: Calibration = .{ .table = &table, .plan = .links_on_disk };
    for ([_]u32{ 1, 5, 10, 40, 100, 300 }) |k| {
        for ([_]Calibration{ full, few, middle, on_disk }) |one| {
            var last: u32 = 0;
            for (1..100) |percent| {
                const size = one.list_size(k, as_f32(@intCast(percent)) / 100).?;
                try testing.expect(size >= last and size >= k);
                last = size;
            }
        }
    }
    // More than 64, at which 0.95 was measured, but not much more.
    const size = full.list_size(10, 0.95).?;
    try testing.expect(size > 64 and size < 90);
    try testing.expect(few.list_size(10, 0.95).? > middle.list_size(10, 0.95).?);
    try testing.expect(middle.list_size(10, 0.95).? > size);
    try testing.expect(full.list_size(1, 0.95).? < size);
    try testing.expect(full.list_size(5, 0.95).? < size);
    try testing.expect(full.list_size(40, 0.95).? > size);
    try testing.expect(full.list_size(300, 0.95).? >= 3 * full.list_size(100, 0.95).? - 3);
    // Beyond what was reached: the longest list, and the truth about it.
    try testing.expectEqual(256, full.list_size(10, 0.9999).?);
    try testing.expectApproxEqAbs(0.99, full.expected(10, 256).?.recall, 1e-4);
    try testing.expectApproxEqAbs(0.95, full.expected(10, 64).?.recall, 1e-4);
    try testing.expect(full.expected(1, 64).?.recall > 0.95);
    try testing.expect(middle.expected(10, 64).?.recall < full.expected(10, 64).?.recall);
    try testing.expectEqual(null, (Calibration{}).list_size(10, 0.95));
}

test "a filter's list is stretched where whole queries miss what they should find" {
    // 600 queries at 0.95: a deviation of 0.0028 is that of single misses.
    var points = [_]Point{ example_point(16, 0.9), example_point(42, 0.95), example_point(470, 0.97) };
    const curves = [_]Curve{.{ .k = 10, .links = 32, .points = &points }};
    const table: Table = .{ .queries = 600, .curves = &curves };
    const calibration: Calibration = .{ .table = &table, .kept = 14 };
    points[1].deviation = 0.0028;
    try testing.expectEqual(1, calibration.stretch(10, 0.95));
    points[1].deviation = 0.0028 * 2;
    try testing.expectApproxEqAbs(2.3, calibration.stretch(10, 0.95), 0.15);
    try testing.expectEqual(1, calibration.stretch(10, 0.9));
    points[1].deviation = 0.1;
    try testing.expectEqual(4, calibration.stretch(10, 0.95));
    points[2].deviation = 0.5; // of a part of the sample
    try testing.expectEqual(4, calibration.stretch(10, 0.97));
    try testing.expectEqual(1, (Calibration{}).stretch(10, 0.95));
}

test "a table that makes no sense still gives a list size within the limits" {
    const curves = [_]Curve{
        .{ .k = 10, .links = 32, .points = &.{ example_point(512, 0.7), example_point(0, 2), example_point(std.math.maxInt(u32), std.math.nan(f32)) } },
        .{ .k = 0, .links = 32, .points = &.{example_point(1, -1)} },
        .{ .k = 100, .links = 32, .points = &.{} },
    };
    const table: Table = .{ .queries = 0, .curves = &curves };
    const one: Calibration = .{ .table = &table, .kept = 32 };
    for ([_]u32{ 1, 10, 4096 }) |k| {
        for ([_]f32{ 0.01, 0.9, 0.999999 }) |recall| {
            const size = one.list_size(k, recall).?;
            try testing.expect(size >= k and size <= list_size_max);
        }
    }
}
