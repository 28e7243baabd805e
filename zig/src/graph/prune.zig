//! Which candidates become neighbors: Vamana's RobustPrune, over candidates already sorted by distance.
const std = @import("std");
const Candidate = @import("search.zig").Candidate;

/// A neighbor with this bit has not yet been compared with the other neighbors of its list.
pub const mark: u32 = 1 << 31;

/// Buffers of one thread.
pub const Pruner = struct {
    chosen: []u32,
    /// Chosen ones that still carry the mark: all that an unmarked candidate has to be compared with.
    unverified: []u32,
    distances: []f32,

    /// Comparisons are made a few at a time: a batch is cheaper than single calls, and most candidates are hidden early.
    const stride = 8;

    pub fn init(allocator: std.mem.Allocator, degree: u32) error{OutOfMemory}!Pruner {
        const chosen = try allocator.alloc(u32, degree);
        errdefer allocator.free(chosen);
        const unverified = try allocator.alloc(u32, degree);
        errdefer allocator.free(unverified);
        return .{ .chosen = chosen, .unverified = unverified, .distances = try allocator.alloc(f32, stride) };
    }

    pub fn deinit(self: *Pruner, allocator: std.mem.Allocator) void {
        allocator.free(self.chosen);
        allocator.free(self.unverified);
        allocator.free(self.distances);
        self.* = undefined;
    }

    /// Keeps, nearest first, each candidate that no kept one hides: `a` hides `b` from the target if α·d(a, b) < d(target, b),
    /// distances squared. Candidates with `expanded` set are known not to hide each other. Survivors move to the front,
    /// without the flag; returns how many. Of candidates at distance zero (copies of the target, which hide nothing)
    /// only `copies_max` are kept, so that a vertex with many copies still has neighbors elsewhere.
    pub fn prune(self: *Pruner, comptime Distances: type, distances: *const Distances, candidates: []Candidate, degree: u32, copies_max: u32, alpha: f32) u32 {
        var kept: u32 = 0;
        var unverified: u32 = 0;
        var copies: u32 = 0;
        for (candidates) |candidate| {
            if (kept == degree) break;
            const id: u32 = candidate.id;
            const distance = candidate.distance();
            if (distance == 0) {
                if (copies == copies_max) continue;
                copies += 1;
            } else {
                const against = if (candidate.expanded) self.unverified[0..unverified] else self.chosen[0..kept];
                if (self.hidden(Distances, distances, id, distance, against, alpha)) continue;
            }
            if (!candidate.expanded) {
                self.unverified[unverified] = id;
                unverified += 1;
            }
            self.chosen[kept] = id;
            candidates[kept] = candidate;
            candidates[kept].expanded = false;
            kept += 1;
        }
        return kept;
    }

    fn hidden(self: *Pruner, comptime Distances: type, distances: *const Distances, id: u32, distance: f32, against: []const u32, alpha: f32) bool {
        var at: usize = 0;
        while (at < against.len) : (at += stride) {
            const some = against[at..@min(at + stride, against.len)];
            const out = self.distances[0..some.len];
            distances.distances(id, some, out);
            for (out) |between| if (alpha * between < distance) return true;
        }
        return false;
    }
};
