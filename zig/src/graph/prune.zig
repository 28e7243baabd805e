//! Which candidates become neighbors: Vamana's RobustPrune, over candidates already sorted by distance.
const std = @import("std");
const Candidate = @import("search.zig").Candidate;
const Origin = @import("types.zig").Origin;
const types = @import("types.zig");

/// A neighbor with this bit has not yet been compared with the other neighbors of its list.
pub const mark = types.Graph.mark;

/// Buffers of one thread.
pub fn Pruner(comptime Distances: type) type {
    return struct {
        const Self = @This();

        origin: Origin(Distances),
        chosen: []u32,
        /// Chosen ones that still carry the mark: all that an unmarked candidate has to be compared with.
        unverified: []u32,
        rest: []Candidate,

        /// Comparisons are made a few at a time: a batch is cheaper than single calls, and most candidates are hidden early.
        const stride = 8;

        pub fn init(allocator: std.mem.Allocator, distances: *const Distances, degree: u32) error{OutOfMemory}!Self {
            var origin = try Origin(Distances).init(allocator, distances);
            errdefer origin.deinit(allocator);
            const chosen = try allocator.alloc(u32, degree);
            errdefer allocator.free(chosen);
            const unverified = try allocator.alloc(u32, degree);
            errdefer allocator.free(unverified);
            return .{ .origin = origin, .chosen = chosen, .unverified = unverified, .rest = try allocator.alloc(Candidate, degree) };
        }

        pub fn deinit(self: *Self, allocator: std.mem.Allocator) void {
            self.origin.deinit(allocator);
            allocator.free(self.chosen);
            allocator.free(self.unverified);
            allocator.free(self.rest);
            self.* = undefined;
        }

        /// Keeps, nearest first, each candidate that no kept one hides (types.zig, `hides`). Candidates with `expanded` set are known not to hide each other.
        /// Survivors move to the front, without the flag; returns how many. Of candidates at distance zero (copies of
        /// the target, which hide nothing) only `copies_max` are kept, so that a vertex with many copies still has
        /// neighbors elsewhere.
        pub fn prune(self: *Self, distances: *const Distances, candidates: []Candidate, degree: u32, copies_max: u32, alpha: f32) u32 {
            var kept: u32 = 0;
            var unverified: u32 = 0;
            var copies: u32 = 0;
            for (candidates) |candidate| {
                if (kept == degree) break;
                if (types.is_copy(Distances, distances, candidate.id, candidate.distance())) {
                    if (copies == copies_max) continue;
                    copies += 1;
                } else {
                    const against = if (candidate.expanded) self.unverified[0..unverified] else self.chosen[0..kept];
                    if (self.hidden(distances, candidate, against, alpha)) continue;
                }
                if (!candidate.expanded) {
                    self.unverified[unverified] = candidate.id;
                    unverified += 1;
                }
                self.chosen[kept] = candidate.id;
                candidates[kept] = candidate;
                candidates[kept].expanded = false;
                kept += 1;
            }
            return kept;
        }

        /// Puts a sorted list into pruning order: first those that pruning with a stricter α would keep, nearest first.
        /// A search that knows only the first few links of every vertex finds far more with them than with the nearest
        /// few, which hide each other.
        pub fn order(self: *Self, distances: *const Distances, members: []Candidate) void {
            var kept: u32 = 0;
            for (order_alphas) |alpha| {
                var left: u32 = 0;
                const first = kept;
                for (members[first..]) |member| {
                    if (self.hidden(distances, member, self.chosen[0..kept], alpha)) {
                        self.rest[left] = member;
                        left += 1;
                    } else {
                        self.chosen[kept] = member.id;
                        members[kept] = member;
                        kept += 1;
                    }
                }
                @memcpy(members[kept..], self.rest[0..left]);
            }
        }

        const order_alphas = [_]f32{ 0.95, 1.0, 1.1 };

        fn hidden(self: *Self, distances: *const Distances, candidate: Candidate, against: []const u32, alpha: f32) bool {
            if (against.len == 0) return false;
            const distance = candidate.distance();
            var out: [stride]f32 = undefined;
            self.origin.set(distances, candidate.id);
            var at: usize = 0;
            while (at < against.len) : (at += stride) {
                const some = against[at..@min(at + stride, against.len)];
                self.origin.measure(distances, some, out[0..some.len]);
                for (out[0..some.len]) |between| if (types.hides(Distances, alpha, between, distance)) return true;
            }
            return false;
        }
    };
}
