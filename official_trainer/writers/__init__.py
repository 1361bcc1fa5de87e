"""Where reports go: every sink is one small class behind `base.Writer`. Import the submodules.

Writers are projections of the run's history. None of them holds state that a run needs: each is
brought into line with the restored history when it is opened, so that what it shows never depends
on how often the run was interrupted.
"""
