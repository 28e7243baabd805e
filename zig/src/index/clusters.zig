//! Which rows a partitioned build links together. Every row has a home, the partition nearest to it, and is a guest of
//! the next nearest, so that neighboring partitions share vertices over which the merged graph leads from one to the other.
//!
//! Partitions are the clusters of a seeded sample, by k-means over the codes for construction. Each cluster has a price
//! that is added to all distances to it and rises while it is more wanted than others, so that partitions come out about
//! equal; what room a partition has is fixed, and a row that finds no room goes to the next.
const std = @import("std");
const base = @import("base");
const graph = @import("graph");
const quant = @import("quant");
const diagnostics = @import("diagnostic.zig");
const work = @import("work.zig");
const Control = @import("options.zig").Control;
const Plan = @import("options.zig").Plan;
const Diagnostic = diagnostics.Diagnostic;
const Error = diagnostics.Error;

pub const nowhere: u16 = std.math.maxInt(u16);
pub const no_row: u32 = std.math.maxInt(u32);

pub const Clusters = struct {
    /// By row; a row without a guest's place has `nowhere` for it.
    homes: []u16,
    guests: []u16,
    /// Row of the sample's medoid: where searches start.
    entry: u32,
    /// Of each partition the home nearest to its center; `no_row` where it is home to none.
    hubs: []u32,
    /// A tree of all partitions: of each its parent, `nowhere` for the entry. From one branch to the next it leads nearer.
    parents: []u16,

    /// Graphs are joined; homes are enough to place rows.
    pub fn forget_guests(self: *Clusters, allocator: std.mem.Allocator) void {
        base.free_untouched(allocator, self.guests);
        self.guests = &.{};
    }

    pub fn deinit(self: *Clusters, allocator: std.mem.Allocator) void {
        allocator.free(self.hubs);
        base.free_untouched(allocator, self.parents);
        base.free_untouched(allocator, self.homes);
        base.free_untouched(allocator, self.guests);
        self.* = undefined;
    }
};

const turns = 24;
/// After so many turns centers stay where they are and only prices change.
const turns_moving = 16;

/// Depends on nothing but the codes, the plan and the seed.
pub fn assign(allocator: std.mem.Allocator, points: *const work.PointsFile, n: u32, plan: Plan, seed: u64, branches: u32, control: *const Control, diagnostic: *Diagnostic) Error!Clusters {
    const sample_size = @min(n, plan.members_max, @max(4096, 32 * plan.partitions));
    var job = try Job.init(allocator, points.dim, sample_size, plan.partitions);
    defer job.deinit();

    const rows = try base.alloc_untouched(allocator, u32, sample_size);
    defer base.free_untouched(allocator, rows);
    var prng = base.Prng.init(seed).split(0x7061_7274);
    for (rows, 0..) |*row, i| {
        const from = @as(u64, n) * i / sample_size;
        const to = @as(u64, n) * (i + 1) / sample_size;
        row.* = @intCast(from + prng.below(to - from));
    }
    try points.load_rows(&job.codes, rows, diagnostic);
    const entry = graph.medoid(quant.BuildCodes, &job.codes, sample_size, seed);
    job.draw_centers(&prng);
    for (0..turns) |turn| {
        try control.check();
        job.turn(turn < turns_moving);
    }

    const parents = try job.tree(entry, branches);
    errdefer base.free_untouched(allocator, parents);

    const hubs = try allocator.alloc(u32, plan.partitions);
    errdefer allocator.free(hubs);
    @memset(hubs, no_row);
    const hub_distances = try allocator.alloc(f32, plan.partitions);
    defer allocator.free(hub_distances);
    @memset(hub_distances, std.math.inf(f32));
    const homes = try base.alloc_untouched(allocator, u16, n);
    errdefer base.free_untouched(allocator, homes);
    const guests = try base.alloc_untouched(allocator, u16, n);
    errdefer base.free_untouched(allocator, guests);
    @memset(job.loads, 0);
    var first: u32 = 0;
    while (first < n) {
        try control.check();
        const count = @min(sample_size, n - first);
        try points.load(&job.codes, 0, first, count, diagnostic);
        for (homes[first..][0..count], guests[first..][0..count], 0..) |*home, *guest, i| {
            const nearest = job.nearest_two(@intCast(i), plan.members_max);
            home.* = nearest[0];
            guest.* = nearest[1];
            job.loads[nearest[0]] += 1;
            if (nearest[1] != nowhere) job.loads[nearest[1]] += 1;
            const distance = job.distances[nearest[0]];
            if (distance < hub_distances[nearest[0]]) {
                hub_distances[nearest[0]] = distance;
                hubs[nearest[0]] = @intCast(first + i);
            }
        }
        first += count;
    }
    return .{ .homes = homes, .guests = guests, .entry = rows[entry], .hubs = hubs, .parents = parents };
}

const Job = struct {
    allocator: std.mem.Allocator,
    /// The sample, then the centers.
    codes: quant.BuildCodes,
    sample_size: u32,
    encoder: quant.Encoder,
    center_ids: []u32,
    distances: []f32,
    prices: []f32,
    /// Rows that a cluster is home to or has as guests.
    loads: []u32,
    home_counts: []u32,
    sums: []f32,
    scratch: []u16,

    fn init(allocator: std.mem.Allocator, dim: u32, sample_size: u32, count: u32) error{OutOfMemory}!Job {
        var codes = try quant.BuildCodes.init(sample_size + count, dim);
        errdefer codes.deinit();
        var encoder = try quant.Encoder.init(allocator, quant.BuildCodes.params_of(dim));
        errdefer encoder.deinit(allocator);
        const center_ids = try base.alloc_untouched(allocator, u32, count);
        errdefer base.free_untouched(allocator, center_ids);
        for (center_ids, 0..) |*id, i| id.* = @intCast(sample_size + i);
        const distances = try base.alloc_untouched(allocator, f32, count);
        errdefer base.free_untouched(allocator, distances);
        const prices = try base.alloc_untouched(allocator, f32, count);
        errdefer base.free_untouched(allocator, prices);
        @memset(prices, 0);
        const loads = try base.alloc_untouched(allocator, u32, count);
        errdefer base.free_untouched(allocator, loads);
        const home_counts = try base.alloc_untouched(allocator, u32, count);
        errdefer base.free_untouched(allocator, home_counts);
        const sums = try allocator.alloc(f32, @as(usize, count) * dim);
        errdefer allocator.free(sums);
        return .{
            .allocator = allocator,
            .codes = codes,
            .sample_size = sample_size,
            .encoder = encoder,
            .center_ids = center_ids,
            .distances = distances,
            .prices = prices,
            .loads = loads,
            .home_counts = home_counts,
            .sums = sums,
            .scratch = try allocator.alloc(u16, dim),
        };
    }

    fn deinit(self: *Job) void {
        const allocator = self.allocator;
        self.codes.deinit();
        self.encoder.deinit(allocator);
        base.free_untouched(allocator, self.center_ids);
        base.free_untouched(allocator, self.distances);
        base.free_untouched(allocator, self.prices);
        base.free_untouched(allocator, self.loads);
        base.free_untouched(allocator, self.home_counts);
        allocator.free(self.sums);
        allocator.free(self.scratch);
    }

    fn draw_centers(self: *Job, prng: *base.Prng) void {
        const dim = self.codes.dim;
        const count = self.center_ids.len;
        for (self.center_ids, 0..) |center, i| {
            const from = @as(u64, self.sample_size) * i / count;
            const to = @max(from + 1, @as(u64, self.sample_size) * (i + 1) / count);
            const drawn: usize = @intCast(from + prng.below(to - from));
            @memcpy(self.codes.codes[@as(usize, center) * dim ..][0..dim], self.codes.codes[drawn * dim ..][0..dim]);
            self.codes.factors[center] = self.codes.factors[drawn];
        }
    }

    /// One turn of k-means over the sample.
    fn turn(self: *Job, moving: bool) void {
        const dim = self.codes.dim;
        @memset(self.loads, 0);
        @memset(self.home_counts, 0);
        @memset(self.sums, 0);
        var distance_sum: f64 = 0;
        for (0..self.sample_size) |point| {
            const nearest = self.nearest_two(@intCast(point), std.math.maxInt(u32));
            for (nearest) |cluster| if (cluster != nowhere) {
                self.loads[cluster] += 1;
            };
            const home = nearest[0];
            self.home_counts[home] += 1;
            distance_sum += self.distances[home];
            // A code stands for its grid point times its factor.
            const factor = self.codes.factors[point].f;
            for (self.sums[@as(usize, home) * dim ..][0..dim], self.codes.codes[point * dim ..][0..dim]) |*sum, u|
                sum.* += factor * (@as(f32, @floatFromInt(u)) - 127.5);
        }
        const wanted = 2 * @as(f32, @floatFromInt(self.sample_size)) / @as(f32, @floatFromInt(self.prices.len));
        const step: f32 = @floatCast(price_share * distance_sum / @as(f64, @floatFromInt(self.sample_size)));
        for (self.prices, self.loads) |*price, load| price.* += step * (@min(2, @as(f32, @floatFromInt(load)) / wanted) - 1);
        if (!moving) return;
        for (self.center_ids, self.home_counts, 0..) |center, count, i| {
            if (count == 0) continue;
            const mean = self.sums[i * dim ..][0..dim];
            for (mean) |*value| value.* /= @floatFromInt(count);
            self.codes.set(center, &self.encoder, mean, self.scratch);
        }
    }

    /// Takes clusters one after another, always the one farthest from all before it, and hangs each on the nearest of
    /// those that has a branch left.
    fn tree(self: *Job, entry: u32, branches: u32) error{OutOfMemory}![]u16 {
        const allocator = self.allocator;
        const count = self.center_ids.len;
        const parents = try base.alloc_untouched(allocator, u16, count);
        errdefer base.free_untouched(allocator, parents);
        const gaps = try base.alloc_untouched(allocator, f32, count);
        defer base.free_untouched(allocator, gaps);
        const kids = try base.alloc_untouched(allocator, u32, count);
        defer base.free_untouched(allocator, kids);
        @memset(kids, 0);
        var kids_of_entry: u32 = 0;
        const taken = -std.math.inf(f32);
        self.codes.distances(entry, self.center_ids, gaps);
        for (0..count) |_| {
            const next = std.mem.indexOfMax(f32, gaps);
            self.codes.distances(self.center_ids[next], self.center_ids, self.distances);
            var parent: u16 = nowhere;
            var nearest = if (kids_of_entry < branches) self.codes.distance(self.center_ids[next], entry) else std.math.inf(f32);
            for (self.distances, gaps, kids, 0..) |distance, gap, own, other| if (gap == taken and own < branches and distance < nearest) {
                nearest = distance;
                parent = @intCast(other);
            };
            if (parent == nowhere) kids_of_entry += 1 else kids[parent] += 1;
            parents[next] = parent;
            for (gaps, self.distances) |*gap, distance| gap.* = @min(gap.*, distance);
            gaps[next] = taken;
        }
        return parents;
    }

    /// The change of a price in one turn, as a share of the mean distance to a center.
    const price_share = 0.1;

    /// The two clusters with room that are nearest to a point, their prices included.
    fn nearest_two(self: *Job, point: u32, room: u32) [2]u16 {
        self.codes.distances(point, self.center_ids, self.distances);
        var best: [2]u16 = .{ nowhere, nowhere };
        var costs: [2]f32 = .{ std.math.inf(f32), std.math.inf(f32) };
        for (self.distances, self.prices, self.loads, 0..) |distance, price, load, cluster| {
            if (load >= room) continue;
            const cost = distance + price;
            if (cost < costs[0]) {
                best[1] = best[0];
                costs[1] = costs[0];
                best[0] = @intCast(cluster);
                costs[0] = cost;
            } else if (cost < costs[1]) {
                best[1] = @intCast(cluster);
                costs[1] = cost;
            }
        }
        std.debug.assert(best[0] != nowhere); // all partitions together have more room than rows need
        return best;
    }
};
