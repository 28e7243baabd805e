//! Asynchronous searches that have ended and wait to be reaped.
const std = @import("std");

/// Submitted and not reaped, at most.
pub const waiting_max = 1 << 16;

pub const Node = struct { number: u64 = 0, following: ?*Node = null };

pub const Completed = struct {
    mutex: std.Thread.Mutex = .{},
    first: ?*Node = null,
    last: ?*Node = null,
    outstanding: std.atomic.Value(u32) = .init(0),
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

    pub fn reserve(self: *Completed) bool {
        if (self.outstanding.fetchAdd(1, .acq_rel) < waiting_max) return true;
        self.release();
        return false;
    }

    pub fn release(self: *Completed) void {
        _ = self.outstanding.fetchSub(1, .acq_rel);
    }

    pub fn push(self: *Completed, node: *Node) void {
        self.mutex.lock();
        defer self.mutex.unlock();
        node.following = null;
        if (self.last) |last| last.following = node else self.first = node;
        self.last = node;
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
        self.release();
        return node;
    }
};
