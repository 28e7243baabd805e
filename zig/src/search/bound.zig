//! What a search is told of others: a distance beyond which nothing is an answer any more. Where several indexes are
//! searched as one, those that were searched before know k rows within it, so the next one reads a page only for a
//! candidate that may still come between them.
//!
//! It stands beside the search's own bound, the k-th best that it knows itself, and never in its place: with links in
//! memory who is told of a bound reads nothing that it would not have read without. With links on disk there is a way in
//! to be read as well (on_disk.zig).
const std = @import("std");
const index = @import("index");
const filter_plan = @import("filter_plan.zig");
const parameters_file = @import("parameters.zig");
const Parameters = parameters_file.Parameters;
const Plan = @import("shared.zig").Plan;

pub const Bound = struct {
    /// As distances are compared; infinity: nothing was told.
    distance: f32 = std.math.inf(f32),
    /// Standard deviations of an estimate that may lie beyond it.
    sigma: f32 = 0,

    /// `told` is a distance as users see it. Those are rounded once, so what it stands for may lie a step beyond.
    ///
    /// A search that is not told how wide a bound is takes one that follows from its list, and finds some of its answers on
    /// pages that it reads for others. Within a bound from elsewhere hardly any page is read, so nothing comes with
    /// others: it is as wide as with a filter that few rows pass.
    pub fn of(told: f32, metric: index.Metric, plan: Plan, parameters: *const Parameters) Bound {
        if (told == std.math.inf(f32)) return .{};
        const own = if (plan == .links_on_disk) parameters.sigma_on_disk else parameters.sigma;
        const least = @max(filter_plan.sigma_least, filter_plan.sigma_share * parameters_file.sigma_of_scan(parameters));
        return .{
            .distance = std.math.nextAfter(f32, told, std.math.inf(f32)) * index.space.compared_scale(metric),
            .sigma = if (parameters.sigma_by_plan) @max(own, least) else own,
        };
    }

    pub fn is_told(self: *const Bound) bool {
        return self.distance < std.math.inf(f32);
    }

    /// For a search that looks more closely than its parameters say.
    pub fn widen(self: *Bound, sigma: f32) void {
        self.sigma = @max(self.sigma, sigma);
    }

    /// Whether a row with that estimate, which has that deviation, is no answer.
    pub inline fn excludes(self: *const Bound, estimate: f32, deviation: f32) bool {
        return estimate - self.sigma * deviation > self.distance;
    }
};

test "a bound is told as users see it, and what is not told excludes nothing" {
    const parameters = parameters_file.resolve(.{ .k = 10, .recall = 0.95 }, .{});
    const none: Bound = .of(std.math.inf(f32), .ip, .links_in_memory, &parameters);
    try std.testing.expect(!none.excludes(std.math.floatMax(f32), 0));
    const metrics = [_]index.Metric{ .l2, .ip, .cosine };
    for (metrics, [_]f32{ 3, -7, 0.25 }) |metric, told| {
        var bound: Bound = .of(told, metric, .links_in_memory, &parameters);
        const at = told * index.space.compared_scale(metric);
        try std.testing.expect(!bound.excludes(at, 0));
        try std.testing.expect(bound.excludes(at + 0.01, 0));
        try std.testing.expect(!bound.excludes(at + 0.01, 1));
        try std.testing.expect(bound.excludes(at + 3, 1));
        bound.widen(4);
        try std.testing.expect(!bound.excludes(at + 3, 1));
    }
    // A duplicate of the k-th best, and a caller who says how wide.
    try std.testing.expect(!Bound.of(0, .l2, .links_on_disk, &parameters).excludes(0, 0));
    const asked = parameters_file.resolve(.{ .k = 10, .recall = 0.95, .sigma = 0.5 }, .{});
    try std.testing.expectEqual(0.5, Bound.of(0, .l2, .links_in_memory, &asked).sigma);
    try std.testing.expectEqual(0.5, Bound.of(0, .l2, .links_on_disk, &asked).sigma);
}
