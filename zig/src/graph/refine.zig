//! Exchanges between pages. Pages that were filled one after another took their members first come, first served: the
//! last ones are made of what was left over. Here two vertices of different pages change places wherever both pages
//! together become more alike by it, until little is gained. Pages keep their number of members.
const std = @import("std");
const base = @import("base");
const assert = std.debug.assert;

const types = @import("types.zig");
const workers = @import("workers.zig");
const Origin = @import("types.zig").Origin;
const Placement = @import("types.zig").Placement;
const Graph = types.Graph;

/// Turns over all vertices; the last ones exchange a few of a thousand.
const sweeps_max = 4;
/// Pages that a vertex looks at: those where most of its neighbors are.
const pages_tried = 3;
/// Members of such a page with which it may change places: those least alike to their page.
const partners_tried = 4;
/// A page is looked at closely if neighbors alone make it this alike to the vertex, as a share of its own page.
const rough_share = 0.3;
const gain_min = 1e-3;
/// Copies are infinitely alike; one number for all of them keeps sums finite.
const alike_max = 64;

/// The affinity of two vertices: (r(a)·r(b) / d(a, b)²)², steeper than what pages are filled by. Queries find
/// two vertices together the more seldom the farther these are apart, and the far ones of a page do not count.
inline fn alike(radii_product: f32, distance: f32) f32 {
    const square = distance * distance;
    if (square * @sqrt(@as(f32, alike_max)) <= radii_product) return alike_max;
    const ratio = radii_product / square;
    return ratio * ratio;
}

/// `radii` as `place` measures them, by build id. Threads exchange within shares of the pages, so with one thread the
/// result depends on nothing but the arguments.
pub fn refine(comptime Distances: type, allocator: std.mem.Allocator, distances: *const Distances, graph: *const Graph, options: types.PlaceOptions, radii: []const f32, placement: *Placement, crew: workers.Crew) types.Error!void {
    if (placement.page_first.len < 2) return;
    var job = try Job(Distances).init(allocator, distances, graph, options, radii, placement, crew.threads);
    defer job.deinit(allocator);
    try workers.run(crew, &job, Job(Distances).exchange_many);
    if (job.stopped()) return error.Canceled;
}

fn Job(comptime Distances: type) type {
    return struct {
        const Self = @This();

        distances: *const Distances,
        graph: *const Graph,
        options: types.PlaceOptions,
        radii: []const f32,
        placement: *Placement,
        /// By build id. Atomic because threads look where neighbors are that others exchange.
        page_of: []std.atomic.Value(u32),
        /// The likeness of a vertex to the other members of its page; by build id.
        own: []f32,
        /// Bytes that the records of a page take.
        bytes: []u32,
        exchangers: []Exchanger(Distances),
        stop_requested: std.atomic.Value(bool) = .init(false),

        fn init(allocator: std.mem.Allocator, distances: *const Distances, graph: *const Graph, options: types.PlaceOptions, radii: []const f32, placement: *Placement, threads: u32) error{OutOfMemory}!Self {
            const pages = placement.page_first.len;
            var members_max: usize = 0;
            const page_of = try base.alloc_untouched(allocator, std.atomic.Value(u32), graph.n);
            errdefer base.free_untouched(allocator, page_of);
            const own = try base.alloc_untouched(allocator, f32, graph.n);
            errdefer base.free_untouched(allocator, own);
            const bytes = try base.alloc_untouched(allocator, u32, pages);
            errdefer base.free_untouched(allocator, bytes);
            for (bytes, 0..) |*sum, index| {
                const page = placement.page(index);
                members_max = @max(members_max, page.to - page.from);
                sum.* = 0;
                for (placement.order[page.from..page.to]) |vertex| {
                    sum.* += options.record_bytes[vertex];
                    page_of[vertex] = .init(@intCast(index));
                }
            }
            const exchangers = try allocator.alloc(Exchanger(Distances), threads);
            errdefer allocator.free(exchangers);
            var made: usize = 0;
            errdefer for (exchangers[0..made]) |*exchanger| exchanger.deinit(allocator);
            while (made < threads) : (made += 1) exchangers[made] = try .init(allocator, distances, members_max, graph.degree_max);
            return .{ .distances = distances, .graph = graph, .options = options, .radii = radii, .placement = placement, .page_of = page_of, .own = own, .bytes = bytes, .exchangers = exchangers };
        }

        fn deinit(self: *Self, allocator: std.mem.Allocator) void {
            for (self.exchangers) |*exchanger| exchanger.deinit(allocator);
            allocator.free(self.exchangers);
            base.free_untouched(allocator, self.bytes);
            base.free_untouched(allocator, self.own);
            base.free_untouched(allocator, self.page_of);
        }

        pub fn stop(self: *Self) void {
            self.stop_requested.store(true, .monotonic);
        }

        fn stopped(self: *Self) bool {
            if (self.options.cancel) |cancel| if (cancel.load(.monotonic)) return true;
            return self.stop_requested.load(.monotonic);
        }

        fn members(self: *const Self, page: u32) []u32 {
            const range = self.placement.page(page);
            return self.placement.order[range.from..range.to];
        }

        fn exchange_many(self: *Self, worker: u32) void {
            const exchanger = &self.exchangers[worker];
            const pages: u64 = self.placement.page_first.len;
            exchanger.pages_from = @intCast(pages * worker / self.exchangers.len);
            exchanger.pages_to = @intCast(pages * (worker + 1) / self.exchangers.len);
            for (0..sweeps_max) |_| {
                for (exchanger.pages_from..exchanger.pages_to) |page| {
                    if (self.stopped()) return;
                    exchanger.measure_page(self, @intCast(page));
                }
                var exchanged: u64 = 0;
                for (exchanger.pages_from..exchanger.pages_to) |page| {
                    if (self.stopped()) return;
                    for (self.members(@intCast(page)), 0..) |vertex, place| exchanged += @intFromBool(exchanger.consider(self, vertex, @intCast(page), place));
                }
                if (exchanged == 0) return;
            }
        }
    };
}

/// The data of one thread: it owns the pages of its share and all their members.
fn Exchanger(comptime Distances: type) type {
    return struct {
        const Self = @This();

        const Pull = struct { page: u32, sum: f32 };

        origin: Origin(Distances),
        pages_from: u32 = 0,
        pages_to: u32 = 0,
        /// Distances, then likeness, to neighbors or to the members of a page.
        out: []f32,
        to_other: []f32,
        pulls: []Pull,

        fn init(allocator: std.mem.Allocator, distances: *const Distances, members_max: usize, degree: u32) error{OutOfMemory}!Self {
            var origin = try Origin(Distances).init(allocator, distances);
            errdefer origin.deinit(allocator);
            const out = try allocator.alloc(f32, @max(members_max, degree));
            errdefer allocator.free(out);
            const to_other = try allocator.alloc(f32, members_max);
            errdefer allocator.free(to_other);
            return .{ .origin = origin, .out = out, .to_other = to_other, .pulls = try allocator.alloc(Pull, degree) };
        }

        fn deinit(self: *Self, allocator: std.mem.Allocator) void {
            self.origin.deinit(allocator);
            allocator.free(self.out);
            allocator.free(self.to_other);
            allocator.free(self.pulls);
        }

        /// The likeness of `vertex`, the origin, to each of `ids`; 0 to itself.
        fn measure(self: *Self, job: *const Job(Distances), vertex: u32, ids: []const u32, out: []f32) []f32 {
            const likeness = out[0..ids.len];
            self.origin.measure(job.distances, ids, likeness);
            for (likeness, ids) |*value, id| value.* = if (id == vertex) 0 else alike(job.radii[vertex] * job.radii[id], value.*);
            return likeness;
        }

        fn measure_page(self: *Self, job: *Job(Distances), page: u32) void {
            const members = job.members(page);
            for (members) |vertex| {
                self.origin.set(job.distances, vertex);
                job.own[vertex] = sum_of(self.measure(job, vertex, members, self.out));
            }
        }

        /// Moves a vertex to the best of a few pages, in exchange for the best of a few of its members, if that gains.
        fn consider(self: *Self, job: *Job(Distances), vertex: u32, home: u32, place: usize) bool {
            const own = job.own[vertex];
            self.origin.set(job.distances, vertex);
            const pulls = self.pulls[0..self.pulls_of(job, vertex, home)];
            for (0..pages_tried) |_| {
                const strongest = strongest_of(pulls) orelse return false;
                const page = strongest.page;
                if (strongest.sum < rough_share * own) return false;
                strongest.sum = -1;
                const members = job.members(page);
                self.origin.set(job.distances, vertex);
                const there = self.measure(job, vertex, members, self.to_other);
                const all_there = sum_of(there);
                if (all_there <= 0.9 * own) continue;
                var best_gain: f32 = gain_min;
                var best: ?usize = null;
                var after: struct { vertex: f32, partner: f32 } = undefined;
                var least: [partners_tried]usize = undefined;
                for (least[0..self.least_alike(job, vertex, home, page, there, &least)]) |index| {
                    const partner = members[index];
                    self.origin.set(job.distances, partner);
                    const home_members = job.members(home);
                    const here = self.measure(job, partner, home_members, self.out);
                    const partner_after = sum_of(here) - here[place];
                    const vertex_after = all_there - there[index];
                    const gain = vertex_after - own + partner_after - job.own[partner];
                    if (gain <= best_gain) continue;
                    best_gain = gain;
                    best = index;
                    after = .{ .vertex = vertex_after, .partner = partner_after };
                }
                const index = best orelse continue;
                const partner = members[index];
                self.swap(job, vertex, home, place, partner, page, index);
                job.own[vertex] = after.vertex;
                job.own[partner] = after.partner;
                return true;
            }
            return false;
        }

        /// The pull of the vertex's neighbors toward each page of this thread's share.
        fn pulls_of(self: *Self, job: *Job(Distances), vertex: u32, home: u32) usize {
            const neighbors = job.graph.list(vertex);
            var count: usize = 0;
            for (self.measure(job, vertex, neighbors, self.out), neighbors) |likeness, neighbor| {
                const page = job.page_of[neighbor].load(.monotonic);
                if (page == home or page < self.pages_from or page >= self.pages_to) continue;
                const known = for (self.pulls[0..count]) |*pull| {
                    if (pull.page == page) break pull;
                } else null;
                if (known) |pull| {
                    pull.sum += likeness;
                } else {
                    self.pulls[count] = .{ .page = page, .sum = likeness };
                    count += 1;
                }
            }
            return count;
        }

        fn strongest_of(pulls: []Pull) ?*Pull {
            var strongest: ?*Pull = null;
            for (pulls) |*pull| {
                if (pull.sum > 0 and (strongest == null or pull.sum > strongest.?.sum)) strongest = pull;
            }
            return strongest;
        }

        /// Members of a page that it would miss least once `vertex` is there, and whose place that can take.
        fn least_alike(self: *const Self, job: *const Job(Distances), vertex: u32, home: u32, page: u32, there: []const f32, out: *[partners_tried]usize) usize {
            _ = self;
            const budget = job.options.page_bytes_budget;
            const bytes: u32 = job.options.record_bytes[vertex];
            const members = job.members(page);
            var count: usize = 0;
            for (members, there, 0..) |member, likeness, index| {
                const member_bytes: u32 = job.options.record_bytes[member];
                // A page that grows must stay within the budget; a record larger than a page has one to itself.
                if (member_bytes > bytes and job.bytes[home] - bytes + member_bytes > budget) continue;
                if (bytes > member_bytes and job.bytes[page] - member_bytes + bytes > budget) continue;
                const key = job.own[member] + likeness;
                if (count == out.len and key >= job.own[members[out[count - 1]]] + there[out[count - 1]]) continue;
                if (count < out.len) count += 1;
                var at = count - 1;
                while (at > 0 and job.own[members[out[at - 1]]] + there[out[at - 1]] > key) : (at -= 1) out[at] = out[at - 1];
                out[at] = index;
            }
            return count;
        }

        fn swap(self: *Self, job: *Job(Distances), vertex: u32, home: u32, place: usize, partner: u32, page: u32, index: usize) void {
            // Losses and gains of the others of both pages.
            self.shift(job, vertex, home, -1);
            self.shift(job, vertex, page, 1);
            self.shift(job, partner, page, -1);
            self.shift(job, partner, home, 1);
            job.members(home)[place] = partner;
            job.members(page)[index] = vertex;
            job.page_of[vertex].store(page, .monotonic);
            job.page_of[partner].store(home, .monotonic);
            const bytes: u32 = job.options.record_bytes[vertex];
            const partner_bytes: u32 = job.options.record_bytes[partner];
            job.bytes[home] = job.bytes[home] - bytes + partner_bytes;
            job.bytes[page] = job.bytes[page] - partner_bytes + bytes;
        }

        fn shift(self: *Self, job: *Job(Distances), vertex: u32, page: u32, sign: f32) void {
            const members = job.members(page);
            self.origin.set(job.distances, vertex);
            for (self.measure(job, vertex, members, self.out), members) |likeness, member| job.own[member] += sign * likeness;
        }
    };
}

fn sum_of(values: []const f32) f32 {
    var sum: f32 = 0;
    for (values) |value| sum += value;
    return sum;
}
