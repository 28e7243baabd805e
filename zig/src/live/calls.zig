//! Calls of a folder that other processes write to as well: how one begins and ends, and how searches see what others did.
//!
//! The folder's lock is held for a call. A call knows that nothing happened since the last one by the size of the log: every
//! change makes it longer, also a new manifest, before it is there. Otherwise it reads the new records, or everything, before it
//! does its work. Syncs happen without the lock, and the page (page.zig) says when searches may show a change.
//!
//! Locks are taken in this order: `turn`, the folder's, `mutex`, `seen`. No thread waits for the first two while it holds one of the others.
const std = @import("std");
const base = @import("base");
const diagnostics = @import("diagnostic.zig");
const folder = @import("folder.zig");
const manifest_file = @import("manifest.zig");
const page_file = @import("page.zig");
const wal_file = @import("wal.zig");
const Diagnostic = diagnostics.Diagnostic;
const Done = folder.Done;
const Error = diagnostics.Error;
const Found = folder.Found;
const Page = page_file.Page;
const file_error = diagnostics.file_error;

/// Time between two tries to get `mutex` from a thread that reads what others wrote.
const read_ns = 20 * std.time.ns_per_us;

pub fn Calls(comptime Live: type) type {
    return struct {
        // ---- a call that writes ----

        /// The folder is locked, and all that was written is known. The result, if there is one, is that of the whole call: another
        /// process changed the segments.
        pub fn enter(self: *Live, timeout_ns: ?u64, diagnostic: *Diagnostic) Error!?Done {
            try self.check_mode(diagnostic);
            try lock(self, timeout_ns orelse self.options.timeout_ns, diagnostic);
            errdefer unlock_all(self);
            try self.check_sound(diagnostic);
            if (try catch_up(self, diagnostic)) return null;
            unlock_all(self);
            return .{ .outcome = .moved };
        }

        /// The same for a call to which it makes no difference that segments came or went.
        pub fn enter_moved(self: *Live, diagnostic: *Diagnostic) Error!void {
            try self.check_mode(diagnostic);
            try lock(self, self.options.timeout_ns, diagnostic);
            errdefer unlock_all(self);
            try self.check_sound(diagnostic);
            _ = try catch_up(self, diagnostic);
        }

        /// The end of such a call. Its change is on the device when this returns, where durability asks for it, and seen by all
        /// searches that begin later, in any process.
        pub fn leave(self: *Live, result: Error!Done, diagnostic: *Diagnostic) Error!Done {
            defer self.mutex.unlock();
            if (result) |_| checkpoint_when_due(self) else |_| {}
            publish(self);
            unlock(self);
            const done = try result;
            if (done.outcome != .done and done.outcome != .repeated) return done;
            if (self.options.durability == .sync or !self.page.?.is_visible(done.sequence)) {
                try wait_until_synced(self, done.sequence, diagnostic);
            } else if (self.waiting.items.len > 0) _ = show_visible(self); // another process synced it since `publish`
            return self.told(done);
        }

        pub fn leave_quietly(self: *Live) void {
            publish(self);
            unlock_all(self);
        }

        fn lock(self: *Live, timeout_ns: u64, diagnostic: *Diagnostic) Error!void {
            var left = timeout_ns;
            if (!self.turn.try_lock()) {
                const begin = base.nowMicros();
                if (!self.turn.lock(timeout_ns)) return busy(self, diagnostic);
                left -|= (base.nowMicros() - begin) * std.time.ns_per_us;
            }
            errdefer self.turn.unlock();
            if (!(self.store.lock(left) catch |err| return diagnostics.refused(diagnostic, ".", "lock", err))) return busy(self, diagnostic);
            self.mutex.lock();
        }

        fn busy(self: *Live, diagnostic: *Diagnostic) Error {
            const page = self.page orelse (self.store.open_page(.read) catch null);
            const holder = if (page) |one| one.holder.load(.monotonic) else 0;
            if (holder > 0) diagnostic.say("process {d} writes to this index", .{holder}) else diagnostic.say("another process writes to this index", .{});
            return error.Busy;
        }

        /// `mutex` is kept.
        fn unlock(self: *Live) void {
            self.is_current.store(false, .release);
            self.store.unlock();
            self.turn.unlock();
        }

        fn unlock_all(self: *Live) void {
            unlock(self);
            self.mutex.unlock();
        }

        /// Outside a checkpoint nothing is lost where one fails: the log only goes on growing for a while.
        fn checkpoint_when_due(self: *Live) void {
            if (self.wal == null or self.poisoned or self.position.offset < @max(self.checkpoint_at, self.wal_begin + 1)) return;
            var ignored: Diagnostic = .{};
            self.make_checkpoint(&ignored) catch {
                self.checkpoint_at = 2 * self.position.offset;
            };
        }

        /// All that the call did is known to others, and what needs no sync is seen.
        fn publish(self: *Live) void {
            if (self.poisoned or self.generation == 0) return;
            const page = self.page.?;
            if (page.generation.load(.monotonic) != self.generation) page.commit(self.generation, self.synced_sequence);
            if (self.sequence > page.sequence.load(.monotonic)) page.append(self.sequence, self.options.durability == .sync);
            if (self.waiting.items.len > 0) _ = show_visible(self);
        }

        /// Whether a change that needs no sync is seen at once; with the folder's lock.
        pub fn shows_at_once(self: *Live) bool {
            const page = self.page.?;
            return page.sync_wanted.load(.acquire) <= page.synced.load(.acquire);
        }

        // ---- what others wrote ----

        /// With the lock: false if the segments are others now.
        fn catch_up(self: *Live, diagnostic: *Diagnostic) Error!bool {
            if (!(self.store.page_is_linked() catch true)) try renew_page(self, diagnostic);
            if (self.wal) |file| {
                const found = self.store.stat(file) catch |err| return file_error(diagnostic, self.wal_name.?, "stat", err);
                const is_same = found.is_linked and found.size == self.position.offset and self.generation == self.wal_generation and !self.may_be_replaced;
                if (!is_same or !is_sound(self)) return catch_up_slowly(self, found.is_linked and found.size >= self.position.offset, diagnostic);
            } else if (self.is_written() or (self.store.exists(manifest_file.file_name) catch |err| return file_error(diagnostic, manifest_file.file_name, "stat", err))) {
                return catch_up_slowly(self, false, diagnostic);
            }
            self.is_current.store(true, .release);
            return true;
        }

        /// `may_go_on`: the log is at least as long as it was.
        fn catch_up_slowly(self: *Live, may_go_on: bool, diagnostic: *Diagnostic) Error!bool {
            var end: wal_file.End = .whole;
            var is_known = may_go_on and self.generation == self.wal_generation;
            if (is_known) {
                const replayed = read_on(self, .{ .shown = self.page.?.visible.load(.acquire) }, diagnostic) catch |err| switch (err) {
                    error.Corrupt => null, // the manifest may say otherwise
                    else => return err,
                };
                end = replayed orelse .whole;
                is_known = replayed != null and !(self.may_be_replaced and try is_replaced(self, diagnostic));
                if (is_known) self.may_be_replaced = false;
            }
            if (!is_known) end = try read_anew(self, diagnostic) orelse return false;
            try settle(self, end, diagnostic);
            return true;
        }

        /// Records behind those that are known; `mutex` is held.
        fn read_on(self: *Live, limits: Live.Limits, diagnostic: *Diagnostic) Error!wal_file.End {
            errdefer self.generation = 0; // whatever it did: all is read anew
            const first = self.position.offset;
            const bytes = try self.read_log(self.wal.?, first, diagnostic);
            defer self.allocator.free(bytes);
            self.seen.lock();
            defer self.seen.unlock();
            const sequence = self.shown_sequence;
            defer if (self.shown_sequence != sequence) {
                _ = self.version.fetchAdd(1, .acq_rel);
            };
            return self.apply_log(bytes, first, limits, diagnostic);
        }

        /// Whether another manifest than ours is there.
        fn is_replaced(self: *Live, diagnostic: *Diagnostic) Error!bool {
            const text = try diagnostics.read_file(self.allocator, self.store, manifest_file.file_name, manifest_file.bytes_max, diagnostic) orelse return true;
            defer self.allocator.free(text);
            var arena = std.heap.ArenaAllocator.init(self.allocator);
            defer arena.deinit();
            const manifest = manifest_file.parse(arena.allocator(), text) catch |err| return if (err == error.OutOfMemory) error.OutOfMemory else true;
            return manifest.generation != self.generation;
        }

        /// Manifest and log, with the lock; null: the segments are others now.
        fn read_anew(self: *Live, diagnostic: *Diagnostic) Error!?wal_file.End {
            self.seen.lock();
            defer self.seen.unlock();
            self.moved = false;
            errdefer self.generation = 0; // the next look begins from the start
            self.read_manifest(diagnostic) catch |err| {
                if (!self.moved) return err;
                self.generation = 0;
                return null;
            };
            const page = self.page.?;
            const is_told = page.generation.load(.acquire) == self.generation;
            const replayed = try self.replay_all(if (is_told) .{ .shown = page.visible.load(.acquire) } else .{}, diagnostic);
            self.may_be_replaced = false; // the manifest cannot have changed since
            self.layout += 1; // another delta: who keeps rows of the former one has to read them again
            _ = self.version.fetchAdd(1, .acq_rel);
            return replayed;
        }

        /// With the lock, once all is read: what a writer that was killed left behind.
        fn settle(self: *Live, end: wal_file.End, diagnostic: *Diagnostic) Error!void {
            self.is_current.store(true, .release);
            if (end == .torn) {
                try self.put_aside(diagnostic);
                self.store.truncate(self.wal.?, self.position.offset) catch |err| return file_error(diagnostic, self.wal_name.?, "truncate", err);
            }
            if (!is_sound(self)) {
                try self.make_checkpoint(diagnostic);
                return self.remove_old_names(diagnostic); // of a first write that did not finish
            }
            const page = self.page.?;
            if (self.sequence > page.sequence.load(.acquire)) page.append(self.sequence, true); // its durability is unknown
        }

        /// The page was deleted. The new one is empty, so the call makes a checkpoint first.
        fn renew_page(self: *Live, diagnostic: *Diagnostic) Error!void {
            const page = try open_page(self, diagnostic);
            if (!page.is_valid(self.boot)) page.reset(self.boot);
            self.seen.lock();
            defer self.seen.unlock();
            self.page = page;
            self.lost_page = false;
        }

        fn open_page(self: *Live, diagnostic: *Diagnostic) Error!*Page {
            const page = (self.store.open_page(.write) catch |err| return diagnostics.refused(diagnostic, page_file.file_name, "map", err)).?;
            return page;
        }

        fn take_lease(self: *Live, diagnostic: *Diagnostic) Error!bool {
            return self.store.take_lease() catch |err| return diagnostics.refused(diagnostic, page_file.file_name, "lock", err);
        }

        // ---- opening to write ----

        /// The first writer takes over what it finds; the others join.
        pub fn begin_writing(self: *Live, built: folder.Built, diagnostic: *Diagnostic) Error!void {
            try lock(self, self.options.timeout_ns, diagnostic);
            defer self.mutex.unlock();
            defer unlock(self);
            try self.take_built(built);
            const page = try open_page(self, diagnostic);
            const is_alone = try take_lease(self, diagnostic);
            if (is_alone or !page.is_valid(self.boot)) page.reset(self.boot);
            self.page = page;
            self.begun = true;
            errdefer self.begun = false;
            // It may have been written to since it was opened.
            if (self.is_written() or (self.store.exists(manifest_file.file_name) catch |err| return file_error(diagnostic, manifest_file.file_name, "stat", err))) {
                const end = try read_anew(self, diagnostic) orelse return diagnostics.moved(diagnostic);
                if (is_alone) try self.take_over(end, diagnostic) else try settle(self, end, diagnostic);
            }
            publish(self);
        }

        // ---- searches ----

        pub fn refresh(self: *Live, diagnostic: *Diagnostic) Error!Found {
            while (!self.mutex.tryLock()) {
                // The thread that has it knows all that was acknowledged: it only may have to be shown.
                if (self.is_current.load(.acquire)) return if (show_visible(self)) .something else .nothing;
                std.Thread.sleep(read_ns);
            }
            self.lost_page = self.page == null or !(self.store.page_is_linked() catch true);
            if (self.lost_page and self.options.writable) {
                self.mutex.unlock();
                // With the lock it makes another page; where that is taken, a later look does.
                var ignored: Diagnostic = .{};
                if (enter(self, 0, &ignored)) |moved| {
                    if (moved != null) return .moved;
                    leave_quietly(self);
                    return .something;
                } else |_| self.mutex.lock();
            } else if (self.lost_page) self.look_for_page();
            defer self.mutex.unlock();
            return follow(self, diagnostic);
        }

        /// With `mutex`.
        fn follow(self: *Live, diagnostic: *Diagnostic) Error!Found {
            if (self.is_told()) {
                // A page that was made anew knows of no manifest.
                if (!self.is_written() and !(self.store.exists(manifest_file.file_name) catch true)) return .nothing;
                if (self.generation != 0 and self.generation == self.wal_generation) if (try follow_log(self, diagnostic)) |found| return found;
            }
            self.seen.lock();
            defer self.seen.unlock();
            defer self.shown_sequence = if (self.options.writable) self.shown_sequence else self.sequence;
            const has_changed = self.look(self.options.writable, diagnostic) catch |err| return if (self.moved) .moved else err;
            if (has_changed) _ = self.version.fetchAdd(1, .acq_rel);
            return if (has_changed) .something else .nothing;
        }

        /// Null: the log is not as it was left.
        fn follow_log(self: *Live, diagnostic: *Diagnostic) Error!?Found {
            const limits = self.limits();
            const before = self.sequence;
            if (limits.read > self.sequence) _ = read_on(self, limits, diagnostic) catch |err| return if (err == error.Corrupt) null else err;
            const has_shown = self.options.writable and show_visible(self);
            return if (has_shown or self.sequence != before) .something else .nothing;
        }

        /// Whether something that waited for a sync is seen now.
        fn show_visible(self: *Live) bool {
            self.seen.lock();
            defer self.seen.unlock();
            return self.show_waiting(self.page.?.visible.load(.acquire));
        }

        // ---- syncs ----

        /// The last change on the device, synced by any process.
        pub fn known_synced(self: *Live) u64 {
            return @max(self.synced_sequence, if (self.page) |page| page.synced.load(.acquire) else 0);
        }

        /// A sync of the log counts only while the manifest that names it is on the device for certain, and no sync of it has failed.
        pub fn is_sound(self: *Live) bool {
            const page = self.page.?;
            return page.generation.load(.acquire) == self.wal_generation and page.broken.load(.acquire) != self.wal_generation;
        }

        /// One sync serves all waiting calls: a call that finds none running makes it, without any lock. With `mutex`, and without the folder's.
        pub fn wait_until_synced(self: *Live, sequence: u64, diagnostic: *Diagnostic) Error!void {
            while (known_synced(self) < sequence) {
                if (self.poisoned) return not_synced(diagnostic);
                if (self.syncing) {
                    self.changed.wait(&self.mutex);
                } else if (is_sound(self)) {
                    try sync_now(self, diagnostic);
                } else try mend(self, sequence, diagnostic);
            }
            // Who synced it may not have come to that.
            if (self.page) |page| if (!page.is_visible(sequence)) page.sync(known_synced(self));
            if (self.waiting.items.len > 0) _ = show_visible(self);
        }

        fn not_synced(diagnostic: *Diagnostic) Error {
            diagnostic.say("the write was not synced: open the index again to see what the device holds", .{});
            return error.Io;
        }

        /// A checkpoint writes everything anew.
        fn mend(self: *Live, sequence: u64, diagnostic: *Diagnostic) Error!void {
            self.mutex.unlock();
            const entered = enter(self, null, diagnostic);
            if (entered) |moved| {
                if (moved == null) leave_quietly(self);
            } else |_| {}
            self.mutex.lock();
            if (try entered != null) {
                // Who changed the segments knew all of ours, so its manifest holds it. It may have been killed before it told.
                try diagnostics.sync_folder(self.store, ".", diagnostic);
                self.synced_sequence = @max(self.synced_sequence, sequence);
                self.page.?.forget();
            }
            if (known_synced(self) < sequence and !is_sound(self)) return not_synced(diagnostic);
        }

        pub fn sync_now(self: *Live, diagnostic: *Diagnostic) Error!void {
            const page = self.page.?;
            const reached = self.sequence;
            const offset = self.position.offset;
            const generation = self.wal_generation;
            self.syncing = true;
            self.syncing_generation = generation;
            const file = self.wal.?;
            self.mutex.unlock();
            const failure = self.store.sync(file);
            self.mutex.lock();
            self.syncing = false;
            defer self.changed.broadcast();
            if (self.retired) |one| self.store.close(one);
            self.retired = null;
            failure catch |err| {
                // Another process made a checkpoint meanwhile. Else this log is broken, also where only a record without a change got lost.
                if (known_synced(self) >= reached and page.generation.load(.acquire) != generation) return;
                self.poisoned = true;
                page.broken.store(generation, .release);
                return file_error(diagnostic, self.wal_name.?, "sync", err);
            };
            if (page.generation.load(.acquire) != generation or page.broken.load(.acquire) == generation) return;
            self.synced_sequence = @max(self.synced_sequence, reached);
            if (generation == self.wal_generation) self.synced_offset = @max(self.synced_offset, offset);
            page.sync(reached);
            if (self.waiting.items.len > 0) _ = show_visible(self);
        }
    };
}
