//! Asynchronous searches that have ended and wait to be reaped.
const std = @import("std");

/// Submitted and not reaped, at most.
pub const waiting_max = 1 << 16;

pub const Node = struct {
    number: u64 = 0,
    /// The job's own flag, good for as long as the node is outstanding.
    canceled: ?*std.atomic.Value(bool) = null,
    /// Among those completed.
    following: ?*Node = null,
    /// Among those outstanding.
    newer: ?*Node = null,
    older: ?*Node = null,
};

pub const Completed = struct {
    mutex: std.Thread.Mutex = .{},
    first: ?*Node = null,
    last: ?*Node = null,
    /// Submitted and not reaped.
    newest: ?*Node = null,
    outstanding: u32 = 0,
    /// Readable while something can be reaped.
    event_fd: std.posix.fd_t,

    pub fn init() !Completed {
        const flags = std.os.linux.EFD.CLOEXEC | std.os.linux.EFD.NONBLOCK;
        return .{ .event_fd = try std.posix.eventfd(0, flags) };
    }

    /// Nodes still inside are leaked on purpose: their owner has stopped asking for them while closing.
    pub fn deinit(self: *Completed) void {
        std.posix.close(self.event_fd);
    }

    /// Before a node's job is submitted. False when too many are outstanding.
    pub fn reserve(self: *Completed, node: *Node) bool {
        self.mutex.lock();
        defer self.mutex.unlock();
        if (self.outstanding == waiting_max) return false;
        self.outstanding += 1;
        node.newer = null;
        node.older = self.newest;
        if (self.newest) |newest| newest.newer = node;
        self.newest = node;
        return true;
    }

    /// A reserved node that will never be pushed.
    pub fn forget(self: *Completed, node: *Node) void {
        self.mutex.lock();
        defer self.mutex.unlock();
        self.unlink(node);
    }

    /// Tells the job of that number to end. One that has ended, or never was, is left alone.
    pub fn cancel(self: *Completed, number: u64) void {
        self.mutex.lock(); // nodes stay while it is held
        defer self.mutex.unlock();
        var next = self.newest;
        while (next) |node| : (next = node.older) {
            if (node.number == number) return node.canceled.?.store(true, .monotonic);
        }
    }

    fn unlink(self: *Completed, node: *Node) void {
        if (node.newer) |newer| newer.older = node.older else self.newest = node.older;
        if (node.older) |older| older.newer = node.newer;
        self.outstanding -= 1;
    }

    pub fn push(self: *Completed, node: *Node) void {
        self.mutex.lock();
        defer self.mutex.unlock();
        node.following = null;
        const last = self.last;
        self.last = node;
        if (last) |before| {
            before.following = node; // readable already: `pop` reads the descriptor when nothing is left
            return;
        }
        self.first = node;
        // Under the lock, so that the descriptor is not closed between the two.
        const one: u64 = 1;
        _ = std.posix.write(self.event_fd, std.mem.asBytes(&one)) catch {}; // full means readable, which is all it has to be
    }

    pub fn pop(self: *Completed) ?*Node {
        self.mutex.lock();
        defer self.mutex.unlock();
        const node = self.first orelse {
            var count: u64 = 0;
            _ = std.posix.read(self.event_fd, std.mem.asBytes(&count)) catch {}; // nothing to read is nothing to clear
            return null;
        };
        self.first = node.following;
        if (self.first == null) self.last = null;
        self.unlink(node);
        return node;
    }
};

test "tickets are found until they are reaped, and then no more" {
    const testing = std.testing;
    var completed = try Completed.init();
    defer completed.deinit();
    var flags: [5]std.atomic.Value(bool) = @splat(.init(false));
    var nodes: [5]Node = undefined;
    for (&nodes, &flags, 0..) |*node, *flag, i| {
        node.* = .{ .number = i + 10, .canceled = flag };
        try testing.expect(completed.reserve(node));
    }
    completed.cancel(12);
    completed.cancel(99);
    completed.forget(&nodes[4]);
    completed.push(&nodes[0]);
    try testing.expectEqual(&nodes[0], completed.pop().?);
    completed.cancel(10); // reaped: left alone
    completed.cancel(14); // never submitted
    for (&flags, 0..) |*flag, i| try testing.expectEqual(i == 2, flag.load(.monotonic));
    try testing.expectEqual(3, completed.outstanding);
    for (nodes[1..4]) |*node| completed.push(node);
    for (nodes[1..4]) |*node| try testing.expectEqual(node, completed.pop().?);
    try testing.expectEqual(null, completed.pop());
    try testing.expectEqual(0, completed.outstanding);
    try testing.expectEqual(null, completed.newest);
}
