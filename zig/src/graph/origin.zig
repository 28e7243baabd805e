//! One vertex from which distances to many are asked. Distances that offer a prepared form (`Plane`, `prepare`,
//! `distances_prepared`, as `quant.BuildCodes` does) are used through it; others are called with the vertex's id.
const std = @import("std");

pub fn Origin(comptime Distances: type) type {
    const prepared = @hasDecl(Distances, "Plane");
    return struct {
        const Self = @This();

        vertex: u32 = 0,
        plane: if (prepared) Distances.Plane else void,

        pub fn init(allocator: std.mem.Allocator, distances: *const Distances) error{OutOfMemory}!Self {
            return .{ .plane = if (prepared) try .init(allocator, distances.dim) else {} };
        }

        pub fn deinit(self: *Self, allocator: std.mem.Allocator) void {
            if (prepared) self.plane.deinit(allocator);
        }

        pub inline fn set(self: *Self, distances: *const Distances, vertex: u32) void {
            self.vertex = vertex;
            if (prepared) distances.prepare(vertex, &self.plane);
        }

        pub inline fn measure(self: *const Self, distances: *const Distances, ids: []const u32, out: []f32) void {
            if (ids.len == 0) return;
            if (prepared) distances.distances_prepared(&self.plane, ids, out) else distances.distances(self.vertex, ids, out);
        }
    };
}
