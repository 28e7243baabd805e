//! Records that pages of this round brought and that may enter the list. They wait for the end of the round, so that an
//! answer does not depend on the order in which pages arrive.
const std = @import("std");
const layout = @import("layout");
const lists = @import("list.zig");
const burst_max = @import("parameters.zig").burst_max;

pub const Pending = struct {
    /// The search's room; what does not fit is given up.
    items: []lists.Found,
    len: u32 = 0,

    pub const max = burst_max * layout.page.records_max;

    pub inline fn add(self: *Pending, vertex: u32, distance: f32) void {
        if (self.len == self.items.len) return;
        self.items[self.len] = .{ .distance = distance, .vertex = vertex };
        self.len += 1;
    }

    /// All of them by vertex, until the next one is added.
    pub fn take(self: *Pending) []const lists.Found {
        const items = self.items[0..self.len];
        self.len = 0;
        if (items.len > 1) std.mem.sortUnstable(lists.Found, items, {}, struct {
            fn less(_: void, a: lists.Found, b: lists.Found) bool {
                return a.vertex < b.vertex;
            }
        }.less);
        return items;
    }
};

test "what is pending comes by vertex, and no more than has room" {
    var room: [3]lists.Found = undefined;
    var pending: Pending = .{ .items = &room };
    try std.testing.expectEqual(0, pending.take().len);
    for ([_]u32{ 9, 2, 5, 1 }) |vertex| pending.add(vertex, 1);
    const taken = pending.take();
    try std.testing.expectEqual(3, taken.len);
    for (taken, [_]u32{ 2, 5, 9 }) |found, vertex| try std.testing.expectEqual(vertex, found.vertex);
    try std.testing.expectEqual(0, pending.take().len);
}
