//! Links on disk: the pages that a query keeps at hand for as long as it may still follow their links, the oldest first
//! to go. A page stands in the buffer that it was read into.
const std = @import("std");
const layout = @import("layout");

pub const Page = struct { number: u32, buffer: u32, view: layout.page.View };

pub const RecentPages = struct {
    /// The search's room.
    slots: []Page,
    count: u32 = 0,
    oldest: u32 = 0,

    /// Pages at hand at most, of all parts together.
    pub const max = 64;

    pub fn slice(self: *const RecentPages) []const Page {
        return self.slots[0..self.count];
    }

    pub fn find(self: *const RecentPages, number: u32) ?u32 {
        for (self.slice(), 0..) |*page, place| {
            if (page.number == number) return @intCast(place);
        }
        return null;
    }

    /// Returns the page whose place it took.
    pub fn add(self: *RecentPages, page: Page) ?Page {
        if (self.count < self.slots.len) {
            self.slots[self.count] = page;
            self.count += 1;
            return null;
        }
        const place = &self.slots[self.oldest];
        self.oldest = (self.oldest + 1) % @as(u32, @intCast(self.slots.len));
        const former = place.*;
        place.* = page;
        return former;
    }
};

/// Buffers of pages that a query needs no more; the worker takes them after each step and at the end.
pub const Released = struct {
    buffers: [RecentPages.max]u32 = undefined,
    count: u32 = 0,

    pub fn add(self: *Released, buffer: u32) void {
        self.buffers[self.count] = buffer;
        self.count += 1;
    }

    /// They stand until the next one is added.
    pub fn take(self: *Released) []const u32 {
        defer self.count = 0;
        return self.buffers[0..self.count];
    }
};

test "recent pages agree with a queue" {
    var room: [3]Page = undefined;
    var recent: RecentPages = .{ .slots = &room };
    var view: layout.page.View = undefined;
    view.record_count = 0;
    for (0..3) |i| try std.testing.expectEqual(null, recent.add(.{ .number = @intCast(10 + i), .buffer = @intCast(i), .view = view }));
    for (0..4) |i| {
        const former = recent.add(.{ .number = @intCast(13 + i), .buffer = @intCast(i % 3), .view = view }).?;
        try std.testing.expectEqual(10 + i, former.number);
        try std.testing.expectEqual(i % 3, former.buffer);
    }
    try std.testing.expectEqual(null, recent.find(13));
    for (14..17) |number| try std.testing.expect(recent.find(@intCast(number)) != null);
    var released: Released = .{};
    released.add(4);
    released.add(2);
    try std.testing.expectEqualSlices(u32, &.{ 4, 2 }, released.take());
    try std.testing.expectEqual(0, released.take().len);
}
